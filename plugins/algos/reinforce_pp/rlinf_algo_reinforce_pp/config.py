"""Options of REINFORCE++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf_core.objective import KLPlace, RewardKLOptions


@dataclass(frozen=True)
class ReinforcePPConfig(RewardKLOptions):
    """Defaults: one response a prompt, no baseline but the step's mean, a light KL in the reward."""

    algorithm: ClassVar[str] = "reinforce_pp"

    baseline: Literal["none", "group"] = "none"  # before whitening: nothing, or the mean of the group
    group_size: int = 1  # responses per prompt, or episodes per initial state
    gamma: float = 1.0  # discount of a decision
    kl_coef: float = 0.001  # weight of the KL to the initial policy; above 0 needs a reference
    kl_estimator: Literal["k1", "k2", "k3", "k3-ratio"] = "k2"  # in the loss; k2, k3-ratio: exact gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 1:
            raise self.error("group_size", "must be 1 or more")
        if self.baseline == "group" and self.group_size < 2:
            raise self.error(
                "group_size", "with baseline=group, use 2 or more: a group of one has no baseline"
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise self.error("gamma", "must lie between 0 and 1")
        if self.baseline == "group":
            self.refuse_unused("gamma", "with baseline=group every decision gets the whole outcome")

    @property
    def usual_kl_place(self) -> KLPlace:
        """In the reward; in the loss with a group baseline."""
        return "loss" if self.baseline == "group" else "reward"
