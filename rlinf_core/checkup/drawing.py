"""Which ways of drawing pictures work here: each draws one, in a process of its own."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from rlinf_core.checkup.finding import Finding

LIMIT_S = 60.0  # that one way may take
_GL = "with Debian or Ubuntu: apt-get install libosmesa6, or libegl1 libgl1-mesa-dri"
_VULKAN = "with Debian or Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers"
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "vulkan": "vulkan"}


def drawing(limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """A line for each way, and one for what runs will take."""
    works = []
    for way in ("egl", "osmesa"):
        finding = _opengl(way, limit_s)
        works += [way] if finding.state == "ok" else []
        yield finding
    yield _vulkan(limit_s)
    yield _chosen(works)


def _opengl(way: str, limit_s: float) -> Finding:
    if ctypes.util.find_library(_LIBRARIES[way]) is None:
        return Finding("drawing", way, "absent", f"there is no lib{_LIBRARIES[way]}", _GL)
    found = _ask(way, limit_s)
    if "lacks" in found:
        return Finding(
            "drawing", way, "absent", f"not tried: {found['lacks']} is not installed", "pip install mujoco"
        )
    if "error" in found:
        return Finding("drawing", way, "absent", f"cannot draw: {found['error']}", _GL)
    by = f" by {found['renderer']}" if found["renderer"] else ""
    return Finding("drawing", way, "ok", f"drew a picture of 64 x 64 in {1e3 * found['seconds']:.1f} ms{by}")


def _vulkan(limit_s: float) -> Finding:
    """Some simulators draw by it alone."""
    if ctypes.util.find_library(_LIBRARIES["vulkan"]) is None:
        return Finding("drawing", "vulkan", "absent", "there is no libvulkan", _VULKAN)
    found = _ask("vulkan", limit_s)
    if found.get("devices"):
        return Finding("drawing", "vulkan", "ok", f"devices: {', '.join(found['devices'])}")
    return Finding("drawing", "vulkan", "absent", found.get("error", "it has no device"), _VULKAN)


def _chosen(works: list[str]) -> Finding:
    """What simulators that draw by OpenGL take."""
    asked = os.environ.get("MUJOCO_GL", "")
    name = "pictures"
    if asked and asked.lower() not in works:
        advice = f"export MUJOCO_GL={works[0]}" if works else f"unset MUJOCO_GL; {_GL}"
        return Finding("drawing", name, "broken", f"MUJOCO_GL={asked} asks for what does not draw", advice)
    if not works:
        return Finding("drawing", name, "absent", "nothing here draws by OpenGL", _GL)
    chosen = asked.lower() or _by_itself()
    if chosen not in works:
        detail = f"{chosen} is what simulators take here, and it does not draw"
        return Finding("drawing", name, "broken", detail, f"export MUJOCO_GL={works[0]}")
    return Finding("drawing", name, "ok", f"{chosen}{' (MUJOCO_GL)' if asked else ''}")


def _by_itself() -> str:
    from rlinf_core.media.offscreen import graphics

    return graphics("of the checkup")


def _ask(way: str, limit_s: float) -> dict[str, Any]:  # Any: JSON values
    command = [sys.executable, "-m", "rlinf_core.checkup.draw", way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no picture after {limit_s:.0f} s"}
    if done.returncode < 0:
        return {"error": f"the process ended by {signal.Signals(-done.returncode).name}"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"the process ended with code {done.returncode}: {done.stderr.strip()[-200:]}"}
    return found
