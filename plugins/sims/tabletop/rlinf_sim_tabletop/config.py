"""Options of the tabletop simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError

COLOURS = ("red", "blue", "green", "yellow")
REWARDS = ("shifted", "sparse")


@dataclass(frozen=True)
class TabletopConfig:
    """What stands on the table, and what its steps pay."""

    blocks: int = 2  # on the table, each of another colour
    colours: int = 2  # that blocks may have, of red, blue, green and yellow
    max_episode_steps: int = 8  # actions; the table is 76 cm wide
    stride: float = 0.1  # metres of the largest action, each way
    radius: float = 0.05  # metres from a block's middle at which it is reached
    reward: Literal["shifted", "sparse"] = (
        "shifted"  # a success is worth 1; shifted takes 1 off over a whole episode, a wrong block all at once
    )
    image_size: int = 64  # height and width of pictures

    def __post_init__(self) -> None:
        if not 1 <= self.colours <= len(COLOURS):
            raise ConfigError(
                f"simulator.colours (tabletop): {self.colours}: must lie between 1 and {len(COLOURS)}"
            )
        if not 1 <= self.blocks <= self.colours:
            raise ConfigError(
                f"simulator.blocks (tabletop): {self.blocks}: each has another colour, and there are "
                f"{self.colours} (simulator.colours)"
            )
        if self.max_episode_steps < 1:
            raise ConfigError(
                f"simulator.max_episode_steps (tabletop): {self.max_episode_steps}: must be 1 or more"
            )
        for name, value, most in (("stride", self.stride, 0.2), ("radius", self.radius, 0.07)):
            if not 0.01 <= value <= most:
                raise ConfigError(
                    f"simulator.{name} (tabletop): {value}: must lie between 0.01 and {most} metres"
                )
        if self.reward not in REWARDS:
            raise ConfigError(f"simulator.reward (tabletop): {self.reward!r}: use {' or '.join(REWARDS)}")
        if not 16 <= self.image_size <= 256:
            raise ConfigError(
                f"simulator.image_size (tabletop): {self.image_size}: must lie between 16 and 256"
            )
