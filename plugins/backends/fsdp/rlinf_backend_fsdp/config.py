"""Settings of the `fsdp` backend's distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class FSDPConfig:
    """How parameters lie on the ranks and in which precision they are used."""

    precision: Literal["fp32", "bf16"] = field(  # of forward and backward; parameters keep their own
        default="fp32", metadata={"less_memory": "bf16"}
    )
    sharding: Literal["auto", "full", "none"] = "auto"  # auto = full from 64M parameters on
    gradient_checkpointing: bool = field(  # recompute each block in backward: less memory, more time
        default=False, metadata={"less_memory": True}
    )
    offload: tuple[str, ...] = ("weights", "optimizer", "gradients")  # what leaves the device for others

    def __post_init__(self) -> None:
        _check_offload("backend.offload (fsdp)", self.offload, ("weights", "optimizer", "gradients"))
        for name, value, allowed in (
            ("precision", self.precision, ("fp32", "bf16")),
            ("sharding", self.sharding, ("auto", "full", "none")),
        ):
            if value not in allowed:
                raise ConfigError(f"backend.{name} (fsdp): {value!r} is not one of {', '.join(allowed)}")


@dataclass(frozen=True)
class HFRolloutConfig:
    """Generation in the trainer's process."""

    max_running: int = field(  # responses generated at once on one rank
        default=256, metadata={"less_memory": "half"}
    )
    max_cache_tokens: int = field(  # prompt and possible response tokens of the running rows together
        default=65536, metadata={"less_memory": "half"}
    )
    offload: tuple[str, ...] = ("weights", "cache")  # what leaves the device for others

    def __post_init__(self) -> None:
        _check_offload("rollout.offload (hf)", self.offload, ("weights", "cache"))
        for name, value in (("max_running", self.max_running), ("max_cache_tokens", self.max_cache_tokens)):
            if value < 1:
                raise ConfigError(f"rollout.{name}: {value} is less than 1")


def _check_offload(key: str, value: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    unknown = [name for name in value if name not in allowed]
    if unknown:
        raise ConfigError(f"{key}: {unknown[0]!r} cannot be offloaded; there are {', '.join(allowed)}")
