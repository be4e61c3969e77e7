"""Options of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf_core.objective import CriticOptions


@dataclass(frozen=True)
class PPOConfig(CriticOptions):
    """Defaults: one response a prompt, a value head, whitened advantages, no KL, no value clip."""

    algorithm: ClassVar[str] = "ppo"

    group_size: int = 1  # responses per prompt, or episodes per initial state
    whiten: bool = True  # advantages of the whole step to mean 0 and variance 1
    logprob_level: Literal["chunk", "action", "token"] = (
        "chunk"  # what of a robot policy's decision gets a log-probability and a ratio of its own
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 1:
            raise self.error("group_size", "must be 1 or more")
