"""Options of a KL that may be a part of the reward; importing them takes no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.objective.options import PolicyOptions

KLPlace = Literal["reward", "loss", "both"]


@dataclass(frozen=True)
class RewardKLOptions(PolicyOptions):
    """Where the KL to the initial policy goes, and how its coefficient follows a target."""

    kl_in: Literal["reward", "loss", "both"] | None = (
        None  # what kl_coef puts the KL into; null = as published (see docs)
    )
    kl_reward_estimator: Literal["k1", "k2", "k3"] = "k1"  # of the KL in the reward; k1 is unbiased
    kl_target: float | None = (
        None  # mean KL of a decision that kl_coef is adapted to; null = kl_coef is fixed
    )
    kl_horizon: int = 10_000  # rows over which an adaptive kl_coef changes by at most a fifth

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_target()
        if self.kl_coef > 0.0 and not self.kl_in_loss:
            self.refuse_unused(
                "kl_estimator", "is of a KL in the loss; of one in the reward: kl_reward_estimator"
            )
        if self.kl_coef > 0.0 and not self.kl_in_reward:
            self.refuse_unused(
                "kl_reward_estimator", "is of a KL in the reward; of one in the loss: kl_estimator"
            )

    @property
    def usual_kl_place(self) -> KLPlace:
        """Where the KL goes unless `kl_in` says so."""
        return "reward"

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0.0 and self._kl_place != "reward"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the rewards have a KL part."""
        return self.kl_coef > 0.0 and self._kl_place != "loss"

    @property
    def _kl_place(self) -> KLPlace:
        return self.usual_kl_place if self.kl_in is None else self.kl_in

    def _check_target(self) -> None:
        if self.kl_target is None:
            self.refuse_unused("kl_horizon", "is of an adaptive kl_coef; set kl_target too")
            return
        if self.kl_target <= 0.0:
            raise self.error("kl_target", "must be above 0, or null for a fixed kl_coef")
        if self.kl_coef == 0.0:
            raise self.error("kl_target", "kl_coef starts at 0 and would stay there; set kl_coef above 0")
        if self.kl_horizon < 1:
            raise self.error("kl_horizon", "must be 1 or more")
