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
    baseline: Literal["group", "leave-one-out", "greedy"] = (
        "group"  # mean of the group or of the others, or reward of the greedy response
    )
    filter_low: float | None = None  # groups with a mean reward below are not trained; None = off
    filter_high: float | None = None  # groups with a mean reward above are not trained; None = off
    logprob_level: Literal["chunk", "action", "token"] = (
        "chunk"  # what of a robot policy's decision gets a log-probability and a ratio of its own
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 1 if self.baseline == "greedy" else 2
        if self.group_size < least:
            reason = "a group of one has no baseline; use 2 or more, or baseline=greedy"
            raise self.error("group_size", "must be 1 or more" if least == 1 else reason)
        if self.baseline == "greedy" and self.scale_by_std:
            raise self.error("scale_by_std", "the greedy baseline has no group to scale by; set it to false")
        low, high = self.filter_low, self.filter_high
        if low is not None and high is not None and low >= high:
            raise self.error("filter_low", f"must be below filter_high={high}")

    @property
    def filters(self) -> bool:
        """Whether groups are left out by their mean reward."""
        return self.filter_low is not None or self.filter_high is not None
