"""Whether every plugin registers, fits the API, and loads what it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.checkup.finding import Finding
from rlinf_core.isolation.environments import environment_of, install_line
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import KINDS, SPECS
from rlinf_core.plugins.offers import strays

if TYPE_CHECKING:
    from rlinf_core.plugins import PluginInfo

LIMIT_S = 180.0  # that all plugins may take to load


def health() -> Iterator[Finding]:
    """One line a kind of plugins, and one for each that is broken, or offered where nobody looks."""
    for kind in KINDS:
        found = plugins().info(kind)
        good = [info.name for info in found if info.status == "ok"]
        yield Finding("plugin", kind, "ok" if good else "absent", ", ".join(good) or "none")
        for info in found:
            if info.status != "ok":
                advice = f"pip install --force-reinstall {info.distribution}, or remove it"
                yield Finding("plugin", f"{kind} {info.name}", "broken", info.reason, advice)
    for stray in strays():
        advice = f"name the group that is meant in the pyproject.toml of {stray.distribution}"
        yield Finding("plugin", f"{stray.group} {stray.name}", "broken", stray.reason, advice)


def loading(kinds: Iterable[str] = SPECS, limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """What does not load, of plugins that register, and how many do. Other processes load them: one that ends
    or hangs costs that plugin alone its place."""
    infos = [info for kind in kinds for info in plugins().info(kind) if info.status == "ok"]
    by_word = {f"{info.kind}:{info.name}": info for info in infos}
    left = list(by_word)
    loaded = 0
    while left:
        told = _load(left, limit_s)
        for word, error, module in told:
            if not error:
                loaded += 1
            else:
                yield _broken(by_word[word], error, module)
        left = left[len(told) :]
    yield Finding("plugin", "loaded", "ok" if loaded else "broken", f"{loaded} of {len(by_word)}")


def _load(words: Sequence[str], limit_s: float) -> list[tuple[str, str, str]]:
    """What became of them, one or more: word, error, and the module that was not found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        path.touch()
        command = [sys.executable, "-m", "rlinf_core.checkup.load", str(path), *words]
        end = ""
        try:
            done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
            if done.returncode < 0:
                end = f"ended the process by {signal.Signals(-done.returncode).name}"
            elif done.returncode:
                end = f"ended the process with code {done.returncode}"
        except subprocess.TimeoutExpired:
            end = f"had not loaded after {limit_s:.0f} s"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [(line["of"], line["error"], line.get("module", "")) for line in lines]
    if len(found) < len(words):
        found.append((words[len(found)], end or "was not reached", ""))
    return found


def _broken(info: PluginInfo, error: str, module: str) -> Finding:
    name = f"{info.kind} {info.name}"
    spec = plugins().get(info.kind, info.name)
    environment = environment_of(spec)
    if module and environment is not None:
        if environment.state == "ready":
            return Finding("plugin", name, "ok", "runs in an environment of its own")
        return Finding("plugin", name, "absent", f"its packages are not here: {error}", install_line(spec))
    advice = f"pip install {module}" if module else f"pip install --force-reinstall {info.distribution}"
    return Finding("plugin", name, "broken", f"does not load: {error}", f"{advice}, or remove it")
