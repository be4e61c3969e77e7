"""Group-relative policy optimisation (GRPO; Shao et al., "DeepSeekMath", 2024).

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.plugin import needs
from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.objective import group_metrics, policy_terms, trained_mask
from rlinf_core.rl.advantages import group_advantages, group_statistics, spread_over_tokens
from rlinf_core.rl.aggregate import denominator

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(Algorithm):
    """Advantages relative to the group; clipped policy loss; optional KL and entropy terms."""

    config: GRPOConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """`(r - baseline) / std` within each group, the same at every token of a response."""
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        advantages_B = group_advantages(
            batch.rewards_B,
            statistics,
            baseline=self.config.baseline,
            scale_by_std=self.config.scale_by_std,
        )
        mask_BT = trained_mask(batch, self.config)
        return Advantages(
            spread_over_tokens(advantages_B, mask_BT),
            mask_BT=mask_BT,
            metrics=group_metrics(statistics, self.config.algorithm),
        )

    def denominator(self, mask_BT: Tensor) -> float:
        """Of `loss_aggregation`."""
        return denominator(mask_BT, self.config.loss_aggregation)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The clipped policy loss, plus `kl_coef * KL - entropy_coef * entropy`, summed."""
        return policy_terms(outputs, batch, self.config)

    def gradient_free(self, batch: ScoredBatch, advantages: Advantages) -> Tensor:
        """Rows without advantage, as long as no KL or entropy term moves them."""
        if self.config.kl_in_loss or self.config.entropy_coef > 0.0:
            return super().gradient_free(batch, advantages)
        return (advantages.advantages_BT == 0).all(-1)
