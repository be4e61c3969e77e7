"""What filming episodes takes: a simulator that renders, and the packages that write videos."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import RunConfig

_PACKAGES = {"av": "av", "PIL": "pillow"}  # module -> what is installed


def video_problems(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:  # Any: specs of several kinds
    """Why no video could be made."""
    if not config.video.every or config.simulator is None:
        return
    origin = came(config, "video.every")
    if not specs["simulator"].provides.render:
        yield f"video.every: simulator {config.simulator.name!r} draws no pictures; set video.every=0{origin}"
    missing = [name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        install = f"pip install {' '.join(missing)}"
        yield f"video.every: videos need packages that are not installed: {install}{origin}"


def video_warnings(config: RunConfig) -> Iterable[str]:
    """Evaluations that somebody might expect to be filmed."""
    every, evaluated = config.video.every, config.eval.every
    if every and evaluated and every % evaluated:
        yield (
            f"video.every: {every} is no multiple of eval.every={evaluated}; evaluations are filmed after "
            f"steps that are multiples of both, and after the last{came(config, 'video.every')}"
        )
