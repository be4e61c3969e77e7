"""Options and summed loss of a critic. Axes: B rows, T decision steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlinf_core.api.algorithm import LossTerms
from rlinf_core.errors import ConfigError
from rlinf_core.objective.kl_reward import RewardKLOptions
from rlinf_core.objective.policy import aggregated, token_metric
from rlinf_core.rl.aggregate import denominator
from rlinf_core.rl.values import value_loss

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import PolicyOutputs, TrainBatch


@dataclass(frozen=True)
class CriticOptions(RewardKLOptions):
    """How values are learned and what they are used for."""

    critic: Literal["head", "own"] = "head"  # a value head of the policy, or a model with its own optimizer
    gamma: float = 1.0  # discount of a decision
    gae_lambda: float = 0.95  # 1 = returns as they came, less the value; lower trusts the values more
    value_coef: float = 0.5  # weight of the value loss beside the policy's; with critic=head
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


def value_terms(outputs: PolicyOutputs, batch: TrainBatch, options: CriticOptions) -> LossTerms:
    """The value loss, summed as `loss_aggregation` says, so that it shares the policy's denominator."""
    off_BT = ~batch.mask_BT

    def column(values_BT: Tensor | None, what: str) -> Tensor:
        if values_BT is None:
            raise ConfigError(f"{options.algorithm}: algo.critic={options.critic}, but there are no {what}")
        return values_BT.masked_fill(off_BT, 0.0)

    values_BT = column(outputs.values_BT, "values of the critic")
    loss = value_loss(
        values_BT,
        column(batch.values_BT, "values from before the step"),
        column(batch.returns_BT, "returns"),
        clip=options.value_clip,
        huber_delta=options.huber_delta if options.value_loss == "huber" else None,
    )
    total = aggregated(loss.loss_BT, batch, options)
    return LossTerms(
        total,
        {
            "value_loss": (total.detach(), denominator(batch.mask_BT, options.loss_aggregation)),
            "value_clip_fraction": token_metric(loss.clipped_BT, batch.mask_BT),
            "values": token_metric(values_BT, batch.mask_BT),
        },
    )
