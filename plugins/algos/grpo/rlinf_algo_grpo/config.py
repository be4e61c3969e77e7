"""Options of GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf_core.objective.options import PolicyOptions


@dataclass(frozen=True)
class GRPOConfig(PolicyOptions):
    """Defaults: GRPO with a token-mean loss, no KL term, and on-policy log-probabilities."""

    algorithm: ClassVar[str] = "grpo"

    group_size: int = 8  # responses per prompt, or episodes per initial state
    scale_by_std: bool = True  # divide advantages by the group's standard deviation
    baseline: Literal["group", "leave-one-out"] = "group"  # mean of the group, or of the others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise self.error("group_size", "a group of one has no baseline; use 2 or more")
