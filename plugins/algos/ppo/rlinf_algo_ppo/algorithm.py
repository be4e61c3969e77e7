"""Proximal policy optimisation (PPO; Schulman et al. 2017) with generalised advantage estimation.

Axes: B rows, D decisions, T decision steps (D, or several positions of each).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_algo_ppo.config import PPOConfig
from rlinf_algo_ppo.plugin import needs
from rlinf_core.api import (
    Advantages,
    AlgorithmNeeds,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.errors import ConfigError
from rlinf_core.objective.algorithm import KLAlgorithm
from rlinf_core.objective.critic import value_terms
from rlinf_core.objective.kl_reward import penalised_rewards
from rlinf_core.objective.policy import token_metric
from rlinf_core.objective.rows import trained_mask
from rlinf_core.rl.advantages import whiten
from rlinf_core.rl.gae import gae
from rlinf_core.rl.positions import (
    decision_mask,
    decision_sums,
    decision_values,
    spread_over_positions,
)
from rlinf_core.rl.values import explained_variance

if TYPE_CHECKING:
    from torch import Tensor


class PPO(KLAlgorithm):
    """Advantages from a critic, whitened over the step; clipped policy loss and a value loss."""

    config: PPOConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """Generalised advantage estimates, and the returns that the critic learns.

        Rows that a simulator's time limit cut go on with the value of what was seen last; a text that
        reached its longest length has ended. Time passes between decisions only: all positions of one have
        its advantage and its return, at every level of log-probabilities the same.
        """
        if batch.values_BT is None:
            raise ConfigError(
                f"ppo: algo.critic={self.config.critic}, but the batch has no values of a critic"
            )
        rewards_BT, metrics = penalised_rewards(batch, self.kl, self.config)
        each = batch.positions
        values_BD = decision_values(batch.values_BT, each)
        advantages_BD, returns_BD = gae(
            decision_sums(rewards_BT, batch.mask_BT, each),
            values_BD,
            decision_mask(batch.mask_BT, each),
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
            last_values_B=batch.final_values_B,
        )
        mask_BT = trained_mask(batch, self.config)
        mask_BD = decision_mask(mask_BT, each)
        if self.config.whiten:
            advantages_BD = whiten(advantages_BD, mask_BD)
        total, count = token_metric(returns_BD, mask_BD)
        metrics["returns"] = (float(total), float(count))
        metrics["explained_variance"] = explained_variance(values_BD, returns_BD, mask_BD)
        advantages_BT = spread_over_positions(advantages_BD, each).masked_fill(~mask_BT, 0.0)
        returns_BT = spread_over_positions(returns_BD, each).masked_fill(~batch.mask_BT, 0.0)
        return Advantages(advantages_BT, returns_BT, mask_BT, metrics)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The clipped policy loss with its KL and entropy terms, plus that of a value head, summed."""
        terms = super().loss(outputs, batch)
        if self.config.critic == "head":
            values = self.critic_loss(outputs, batch)
            terms.total = terms.total + self.config.value_coef * values.total
            terms.metrics |= values.metrics
        return terms

    def critic_loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The value loss alone."""
        return value_terms(outputs, batch, self.config)

    def trains_policy(self, step: int) -> bool:
        """Not in the first `critic_warmup` steps."""
        return step >= self.config.critic_warmup

    def gradient_free(self, batch: ScoredBatch, advantages: Advantages) -> Tensor:
        """No row: values learn from all."""
        return batch.mask_BT.new_zeros(len(batch.mask_BT))
