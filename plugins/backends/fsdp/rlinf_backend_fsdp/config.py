"""Settings of the `fsdp` backend's distribution."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class HFRolloutConfig:
    """Generation in the trainer's process."""

    max_running: int = 256  # responses generated at once on one rank
    max_cache_tokens: int = 65536  # prompt and possible response tokens of the running rows together

    def __post_init__(self) -> None:
        for name, value in (("max_running", self.max_running), ("max_cache_tokens", self.max_cache_tokens)):
            if value < 1:
                raise ConfigError(f"rollout.{name}: {value} is less than 1")
