"""Settings of the built-in engines."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class LocalConfig:
    """One process per host on this machine."""

    buffer_mb: int = 256  # chunks on their way into or out of one worker's stage; beyond it senders wait
    timeout_s: float = 3600.0  # longest silence of a process that a call is waiting for; 0 = no limit
    heartbeat_s: float = 60.0  # longest time without an answer of a process, whatever it does; 0 = no limit
    start_timeout_s: float = 60.0  # longest start of a process
    restarts: int = 10  # how often processes that are lost are started again: one, or all from a checkpoint

    def __post_init__(self) -> None:
        if self.buffer_mb < 1:
            raise ConfigError(f"engine local: engine.buffer_mb is {self.buffer_mb}; give at least 1")
        for name in ("restarts", "timeout_s", "heartbeat_s"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"engine local: engine.{name} is {getattr(self, name):g}; give 0 (off) or more"
                )
        if self.start_timeout_s <= 0:
            raise ConfigError(
                f"engine local: engine.start_timeout_s is {self.start_timeout_s:g}; give more than 0"
            )
