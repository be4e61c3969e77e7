"""Options of the LIBERO simulator."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Literal

from rlinf_core.errors import ConfigError

# Limits of the published evaluations: the longest demonstration of each suite and some more.
STEP_LIMITS = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
VIEWS = ("rotated", "upright", "raw")


@dataclass(frozen=True)
class LiberoConfig:
    """Which tasks, from which initial states, and what of them the policy is shown."""

    suite: str = "libero_spatial"  # libero_spatial, libero_object, libero_goal, libero_10 (long) or libero_90
    task: int | str = "all"  # a number from 0, a name, several of these with commas, or all: the seed chooses
    init_states: int | str = "all"  # which of a task's fifty initial states, such as 0-39 or 3,7
    settle_steps: int = 10  # steps at rest before an episode begins, in which objects fall into place
    max_episode_steps: int = 0  # 0 = as in the published evaluations
    state: bool = True  # show position, axis-angle and fingers of the hand: 8 numbers
    cameras: tuple[str, ...] = ("agentview", "eye_in_hand")  # shown as images/NAME; empty = no pictures
    image_size: int = 256  # height and width of pictures
    view: Literal["rotated", "upright", "raw"] = (
        "rotated"  # by 180 degrees, as published policies see it; upright = as a person would; raw = LIBERO's
    )
    shadows: bool = False  # with smooth edges and shadows; many times slower without a GPU
    scenes: int = 10  # tasks whose model is kept in memory: about 0.3 GB each, twice that if drawn
    assets: str = field(default="", metadata={"path": True})  # folder of LIBERO's assets, if not installed

    def __post_init__(self) -> None:
        if self.suite not in STEP_LIMITS:
            near = difflib.get_close_matches(self.suite, STEP_LIMITS, n=3, cutoff=0.3)
            raise ConfigError(
                f"simulator.suite (libero): there is no suite {self.suite!r}"
                + (f"; near names: {', '.join(near)}" if near else "")
                + f"; all: {', '.join(STEP_LIMITS)}"
            )
        for name, least in (("settle_steps", 0), ("max_episode_steps", 0), ("scenes", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"simulator.{name} (libero): {getattr(self, name)}: must be {least} or more"
                )
        if not (self.state or self.cameras):
            raise ConfigError("simulator.state (libero): false without cameras: the policy would see nothing")
        if not 8 <= self.image_size <= 1024:
            raise ConfigError(
                f"simulator.image_size (libero): {self.image_size}: must lie between 8 and 1024"
            )
        if self.view not in VIEWS:
            raise ConfigError(f"simulator.view (libero): {self.view!r}: use {', '.join(VIEWS)}")
        if len(set(self.cameras)) < len(self.cameras):
            raise ConfigError(f"simulator.cameras (libero): {', '.join(self.cameras)}: a name is there twice")
