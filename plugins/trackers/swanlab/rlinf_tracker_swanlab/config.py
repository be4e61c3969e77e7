"""Options of the tracker `swanlab`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class SwanLabConfig:
    """Settings of `swanlab`."""

    mode: Literal["offline", "online"] = "offline"  # offline: files in the run's folder, for `swanlab sync`
    project: str = "rlinf"  # where the run lies
    workspace: str = ""  # user or organisation; empty: the account's own
    run_name: str = ""  # empty: the name of its folder
    group: str = ""  # of runs that belong together
    tags: tuple[str, ...] = ()  # words to find the run by, at most 30
    system: bool = False  # also use of the machine, its packages and Git state

    def __post_init__(self) -> None:
        if self.mode not in ("offline", "online"):
            raise ConfigError(f"trackers.mode (swanlab): {self.mode!r}: use offline or online")
        if not self.project:
            raise ConfigError("trackers.project (swanlab): empty; give a name")
        if len(self.tags) > 30:
            raise ConfigError(f"trackers.tags (swanlab): {len(self.tags)} of them; SwanLab takes 30")
