"""Settings of the built-in engines."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class LocalConfig:
    """One process per host on this machine."""

    buffer_mb: int = 256  # chunks on their way into or out of one worker's stage; beyond it senders wait
    timeout_s: float = 3600.0  # longest silence of a process that a call is waiting for; 0 = no limit
    start_timeout_s: float = 60.0  # longest start of a process
    restarts: int = 0  # how often a run that lost a process goes on from its last checkpoint

    def __post_init__(self) -> None:
        if self.buffer_mb < 1:
            raise ConfigError(f"engine local: engine.buffer_mb is {self.buffer_mb}; give at least 1")
        if self.restarts < 0:
            raise ConfigError(f"engine local: engine.restarts is {self.restarts}; give 0 (off) or more")
        if self.timeout_s < 0:
            raise ConfigError(f"engine local: engine.timeout_s is {self.timeout_s:g}; give 0 (off) or more")
        if self.start_timeout_s <= 0:
            raise ConfigError(
                f"engine local: engine.start_timeout_s is {self.start_timeout_s:g}; give more than 0"
            )
