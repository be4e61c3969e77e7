"""Group-relative policy optimisation (GRPO; Shao et al., "DeepSeekMath", 2024) and its relatives.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.plugin import needs
from rlinf_core.api import (
    Advantages,
    AlgorithmNeeds,
    ScoredBatch,
)
from rlinf_core.objective.algorithm import PolicyAlgorithm
from rlinf_core.objective.rows import group_metrics, trained_mask
from rlinf_core.rl.advantages import group_advantages, group_statistics, spread_over_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.objective.kl_reward import Metrics


class GRPO(PolicyAlgorithm):
    """Advantages relative to a baseline a prompt; policy loss with optional KL and entropy terms."""

    config: GRPOConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """`(r - baseline) / std`, the same at every token of a response."""
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        mask_BT = trained_mask(batch, self.config)
        if self.config.baseline == "greedy":
            advantages_B, metrics = self._over_greedy(batch)
        else:
            advantages_B = group_advantages(
                batch.rewards_B,
                statistics,
                baseline=self.config.baseline,
                scale_by_std=self.config.scale_by_std,
            )
            metrics = group_metrics(statistics, self.config.algorithm)
        if self.config.filters:
            outside_G = self._outside(statistics.means_G)
            metrics["filtered_groups"] = (float(outside_G.sum()), float(len(outside_G)))
            mask_BT = mask_BT & ~outside_G[statistics.index_B][:, None]
        return Advantages(spread_over_tokens(advantages_B, mask_BT), mask_BT=mask_BT, metrics=metrics)

    def _over_greedy(self, batch: ScoredBatch) -> tuple[Tensor, Metrics]:
        """What each response earns more than the greedy one (ReMax, Li et al. 2024)."""
        if batch.baselines_B is None:
            raise self.config.error("baseline", "the batch has no rewards of greedy responses")
        metrics: Metrics = {"greedy_reward": (float(batch.baselines_B.sum()), float(len(batch.baselines_B)))}
        return batch.rewards_B - batch.baselines_B, metrics

    def _outside(self, means_G: Tensor) -> Tensor:
        """Groups that are too hard or too easy to learn from."""
        outside_G = torch.zeros_like(means_G, dtype=torch.bool)
        if self.config.filter_low is not None:
            outside_G |= means_G < self.config.filter_low
        if self.config.filter_high is not None:
            outside_G |= means_G > self.config.filter_high
        return outside_G
