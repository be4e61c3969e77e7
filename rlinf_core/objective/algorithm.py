"""What algorithms with the shared policy loss have in common; each adds its needs and its advantages.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_core.api.algorithm import Algorithm
from rlinf_core.objective.kl_reward import KLCoefficient
from rlinf_core.objective.policy import policy_terms
from rlinf_core.rl.aggregate import denominator

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import Advantages, LossTerms, PolicyOutputs, ScoredBatch, TrainBatch
    from rlinf_core.objective.kl_options import RewardKLOptions
    from rlinf_core.objective.options import PolicyOptions


class PolicyAlgorithm(Algorithm):
    """Its loss is `policy_terms` with the options of its config."""

    config: PolicyOptions

    def denominator(self, mask_BT: Tensor) -> float:
        """Of `loss_aggregation`."""
        return denominator(mask_BT, self.config.loss_aggregation)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The policy loss, plus `kl_coef * KL - entropy_coef * entropy`, summed."""
        return policy_terms(outputs, batch, self.config)

    def gradient_free(self, batch: ScoredBatch, advantages: Advantages) -> Tensor:
        """Rows without advantage, as long as no KL or entropy term moves them."""
        if self.config.kl_in_loss or self.config.entropy_coef > 0.0:
            return super().gradient_free(batch, advantages)
        return (advantages.advantages_BT == 0).all(-1)


class KLAlgorithm(PolicyAlgorithm):
    """Has a KL whose coefficient, `self.kl`, may adapt: in the reward, in the loss, or in both."""

    config: RewardKLOptions

    def __init__(self, config: RewardKLOptions) -> None:
        super().__init__(config)
        self.kl = KLCoefficient(config.kl_coef, config.kl_target, config.kl_horizon)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The policy loss with this step's KL coefficient, summed."""
        adapts = self.config.kl_target is not None
        options = replace(self.config, kl_coef=self.kl.value) if adapts else self.config
        return policy_terms(outputs, batch, options)

    def state_dict(self) -> dict[str, Any]:  # Any: plain numbers
        """An adaptive KL coefficient."""
        return self.kl.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.kl.load_state_dict(state)
