"""REINFORCE++ (Hu 2025): whitened over the whole batch instead of judged by a critic.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlinf_algo_reinforce_pp.config import ReinforcePPConfig
from rlinf_algo_reinforce_pp.plugin import needs
from rlinf_core.api import (
    Advantages,
    AlgorithmNeeds,
    ScoredBatch,
)
from rlinf_core.objective.algorithm import KLAlgorithm
from rlinf_core.objective.kl_reward import Metrics, penalised_rewards
from rlinf_core.objective.policy import token_metric
from rlinf_core.objective.rows import group_metrics, trained_mask
from rlinf_core.rl.advantages import group_advantages, group_statistics, whiten
from rlinf_core.rl.gae import discounted_returns

if TYPE_CHECKING:
    pass


class ReinforcePP(KLAlgorithm):
    """Returns less a KL penalty, whitened over all decisions of the step; clipped policy loss."""

    config: ReinforcePPConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """What is still to be won from each decision on, whitened; of the outcome less the group's mean
        with `baseline=group`."""
        judged, metrics = batch, Metrics()
        if self.config.baseline == "group":
            judged, metrics = self._less_group_mean(batch)
        rewards_BT, kl_metrics = penalised_rewards(judged, self.kl, self.config)
        returns_BT = discounted_returns(rewards_BT, batch.mask_BT, self.config.gamma)
        mask_BT = trained_mask(batch, self.config)
        total, count = token_metric(returns_BT, mask_BT)
        metrics |= {"returns": (float(total), float(count)), **kl_metrics}
        return Advantages(whiten(returns_BT, mask_BT), mask_BT=mask_BT, metrics=metrics)

    def _less_group_mean(self, batch: ScoredBatch) -> tuple[ScoredBatch, Metrics]:
        """The batch with each outcome less the mean of its group, paid as a whole at the end."""
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        centred_B = group_advantages(batch.rewards_B, statistics, scale_by_std=False)
        judged = replace(batch, rewards_B=centred_B, step_rewards_BT=None)
        return judged, group_metrics(statistics, self.config.algorithm)
