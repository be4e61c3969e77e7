"""REINFORCE++ (Hu 2025): whitened over the whole batch instead of judged by a critic.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_algo_reinforce_pp.config import ReinforcePPConfig
from rlinf_algo_reinforce_pp.plugin import needs
from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.objective.kl_reward import KLCoefficient, Metrics, penalised_rewards
from rlinf_core.objective.policy import policy_terms, token_metric
from rlinf_core.objective.rows import group_metrics, trained_mask
from rlinf_core.rl.advantages import group_advantages, group_statistics, whiten
from rlinf_core.rl.aggregate import denominator
from rlinf_core.rl.gae import discounted_returns

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePP(Algorithm):
    """Returns less a KL penalty, whitened over all decisions of the step; clipped policy loss."""

    config: ReinforcePPConfig

    def __init__(self, config: ReinforcePPConfig) -> None:
        super().__init__(config)
        self.kl = KLCoefficient(config.kl_coef, config.kl_target, config.kl_horizon)

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

    def denominator(self, mask_BT: Tensor) -> float:
        """Of `loss_aggregation`."""
        return denominator(mask_BT, self.config.loss_aggregation)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The clipped policy loss with its KL and entropy terms, summed."""
        return policy_terms(outputs, batch, self._with_coefficient())

    def state_dict(self) -> dict[str, Any]:  # Any: plain numbers
        """An adaptive KL coefficient."""
        return self.kl.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.kl.load_state_dict(state)

    def _less_group_mean(self, batch: ScoredBatch) -> tuple[ScoredBatch, Metrics]:
        """The batch with each outcome less the mean of its group, paid as a whole at the end."""
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        centred_B = group_advantages(batch.rewards_B, statistics, scale_by_std=False)
        judged = replace(batch, rewards_B=centred_B, step_rewards_BT=None)
        return judged, group_metrics(statistics, self.config.algorithm)

    def _with_coefficient(self) -> ReinforcePPConfig:
        """The options with this step's KL coefficient."""
        return replace(self.config, kl_coef=self.kl.value) if self.config.kl_target else self.config
