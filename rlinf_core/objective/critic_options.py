"""Options of a critic; importing them takes no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.objective.kl_options import RewardKLOptions


@dataclass(frozen=True)
class CriticOptions(RewardKLOptions):
    """How values are learned and what they are used for."""

    critic: Literal["head", "own"] = "head"  # a value head of the policy, or a model with its own optimizer
    gamma: float = 1.0  # discount of a decision
    gae_lambda: float = 0.95  # 1 = returns as they came, less the value; lower trusts the values more
    value_coef: float = 0.1  # weight of the value loss beside the policy's; with critic=head
    value_clip: float | None = None  # how far a value may move from its old one in a step; null = any
    value_loss: Literal["mse", "huber"] = "mse"  # half the squared error, or linear beyond huber_delta
    huber_delta: float = 10.0  # with value_loss=huber
    critic_warmup: int = 0  # steps at the start that train the values alone

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise self.error(name, "must lie between 0 and 1")
        for name in ("value_coef", "huber_delta"):
            if getattr(self, name) <= 0.0:
                raise self.error(name, "must be above 0")
        if self.value_clip is not None and self.value_clip <= 0.0:
            raise self.error("value_clip", "must be above 0, or null for off")
        if self.critic_warmup < 0:
            raise self.error("critic_warmup", "must be 0 or more")
        if self.critic == "own":
            self.refuse_unused(
                "value_coef", "a critic of its own has its own optimizer; set critic_optimizer.lr"
            )
        if self.value_loss == "mse":
            self.refuse_unused("huber_delta", "only value_loss=huber uses it")
