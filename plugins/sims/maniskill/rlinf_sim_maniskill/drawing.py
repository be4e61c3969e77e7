"""With what SAPIEN draws, and how it does without."""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from rlinf_core.errors import ConfigError

NONE = "none"
LIBRARIES = ("sapien", "mani_skill")
DRIVERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")
PACKAGES = (
    "without a GPU, install Mesa's software Vulkan of release 25 or later: Debian 12 `apt-get install -t "
    "bookworm-backports mesa-vulkan-drivers libvulkan1`, Debian 13 and Ubuntu 25.04 `apt-get install "
    "mesa-vulkan-drivers libvulkan1`; VK_ICD_FILENAMES chooses a driver"
)

_log = logging.getLogger(__name__)


@functools.cache
def renderer(cuda: bool) -> str:
    """The name of the device that draws. Raises `ConfigError` that says what was tried."""
    import sapien

    tried = []
    for device, name in ([("cuda", "sapien_cuda")] if cuda else []) + [("cpu", "sapien_cpu")]:
        try:
            sapien.render.RenderSystem(sapien.Device(device))
        except RuntimeError as err:
            tried.append(f"{device}: {err}")
            continue
        if device == "cpu":
            _log.warning(
                "simulator maniskill: no GPU to draw with; pictures are drawn on the CPU (%s), without "
                "shadows unless simulator.shadows asks for them",
                _device_name(sapien.render.get_device_summary()),
            )
        return name
    raise ConfigError(
        f"simulator.images (maniskill): pictures need Vulkan, which does not work ({'; '.join(tried)}); "
        f"{_drivers()}; {PACKAGES}"
    )


@contextlib.contextmanager
def undrawn(active: bool) -> Iterator[None]:
    """Scenes that are built meanwhile have no looks, so no Vulkan is needed: SAPIEN makes materials and
    meshes for the eye even where nothing is drawn."""
    if not active:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, value in _replacements():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


class _Nothing:
    """Takes whatever is set or called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: of a material or texture
        """Keep nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _build_nothing


def _replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and what stands there for the while."""
    import sapien
    from mani_skill.utils.building.actor_builder import ActorBuilder as Builder
    from sapien.wrapper.actor_builder import ActorBuilder

    found: list[tuple[Any, str, Any]] = [(ActorBuilder, "build_render_component", _build_nothing)]
    for owner in (ActorBuilder, Builder):
        found += [(owner, name, _add_nothing) for name in vars(owner) if _is_for_the_eye(name)]
    for name in ("RenderMaterial", "RenderTexture2D"):
        original = getattr(sapien.render, name)
        found += [(module, name, _Nothing) for module in _drawn_with(name, original)]
    return found


def _drawn_with(name: str, original: Any) -> list[Any]:
    """Modules that have it under its own name."""
    modules = [module for key, module in [*sys.modules.items()] if key.partition(".")[0] in LIBRARIES]
    return [module for module in modules if vars(module).get(name) is original]


def _is_for_the_eye(name: str) -> bool:
    return name.startswith("add_") and "visual" in name


def _add_nothing(builder: Any, *args: Any, **kwargs: Any) -> Any:  # Any: of SAPIEN
    return builder


def _build_nothing(*args: Any, **kwargs: Any) -> None:  # Any: of SAPIEN
    return None


def _drivers() -> str:
    chosen = os.environ.get("VK_ICD_FILENAMES")
    if chosen is not None:
        return f"VK_ICD_FILENAMES={chosen}"
    found = [os.path.basename(path) for folder in DRIVERS for path in sorted(glob.glob(f"{folder}/*.json"))]
    return f"drivers in {' and '.join(DRIVERS)}: {', '.join(found) or 'none'}"


def _device_name(summary: str) -> str:
    """Of the last device in SAPIEN's list."""
    named = [line.partition(":")[2].strip() for line in summary.splitlines() if line.startswith("GPU")]
    return named[-1] if named else "software"
