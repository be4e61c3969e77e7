"""Options of the tracker `wandb`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class WandbConfig:
    """Settings of `wandb`."""

    mode: Literal["offline", "online"] = "offline"  # offline: files in the run's folder, for `wandb sync`
    project: str = "rlinf"  # where the run lies
    entity: str = ""  # user or team; empty: the account's own
    run_name: str = ""  # empty: the name of its folder
    group: str = ""  # of runs that belong together
    tags: tuple[str, ...] = ()  # words to find the run by
    system: bool = False  # also use of the machine, its packages and Git state
    timeout_s: float = 60.0  # that start and end may wait for the server

    def __post_init__(self) -> None:
        if self.mode not in ("offline", "online"):
            raise ConfigError(f"trackers.mode (wandb): {self.mode!r}: use offline or online")
        if not self.project:
            raise ConfigError("trackers.project (wandb): empty; give a name")
        if not 1 <= self.timeout_s <= 100:
            raise ConfigError(
                f"trackers.timeout_s (wandb): {self.timeout_s}: must lie between 1 and 100; a run waits no "
                "longer for a tracker"
            )
