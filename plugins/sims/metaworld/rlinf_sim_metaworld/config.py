"""Options of the Meta-World simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError

REWARDS = ("shifted", "dense", "sparse")


@dataclass(frozen=True)
class MetaWorldConfig:
    """Which task, and what its steps pay."""

    task: str = "reach-v3"  # one of the fifty, or MT10 or MT50: the seed of an episode chooses
    max_episode_steps: int = 150  # Meta-World's own limit is 500
    reward: Literal["shifted", "dense", "sparse"] = (
        "shifted"  # dense = Meta-World's 0..10; shifted = dense / 10 - 1, at most 0; sparse = 1 for success
    )
    task_id: bool = False  # show which task it is, one-hot behind the state

    def __post_init__(self) -> None:
        if self.max_episode_steps < 1:
            raise ConfigError(
                f"simulator.max_episode_steps (metaworld): {self.max_episode_steps}: must be 1 or more"
            )
        if self.reward not in REWARDS:
            raise ConfigError(f"simulator.reward (metaworld): {self.reward!r}: use {', '.join(REWARDS)}")
