"""The summed loss of a critic. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.api.algorithm import LossTerms
from rlinf_core.errors import ConfigError
from rlinf_core.objective.policy import aggregated, loss_count, token_metrics
from rlinf_core.rl.masks import kept
from rlinf_core.rl.values import value_loss

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import PolicyOutputs, TrainBatch
    from rlinf_core.objective.critic_options import CriticOptions


def value_terms(outputs: PolicyOutputs, batch: TrainBatch, options: CriticOptions) -> LossTerms:
    """The value loss, summed as `loss_aggregation` says, so that it shares the policy's denominator."""

    def column(values_BT: Tensor | None, what: str) -> Tensor:
        if values_BT is None:
            raise ConfigError(f"{options.algorithm}: algo.critic={options.critic}, but there are no {what}")
        return kept(values_BT, batch.holed_mask_BT)

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
            "value_loss": (total.detach(), loss_count(batch, options)),
            **token_metrics({"value_clip_fraction": loss.clipped_BT, "values": values_BT}, batch),
        },
    )
