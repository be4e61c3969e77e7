"""Supervised fine-tuning: what demonstrations do is made more likely. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlinf_core.api import Advantages, Algorithm, LossTerms
from rlinf_core.builtin.plugin_algorithms import sft_needs

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import AlgorithmNeeds, PolicyOutputs, ScoredBatch, TrainBatch
    from rlinf_core.builtin.algorithms.config import SFTConfig


class SFT(Algorithm):
    """Maximum likelihood of the demonstrated decisions. Rewards are not looked at."""

    config: SFTConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return sft_needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """The weight of each decision: 1, or 1 / T with `loss_aggregation=sequence-mean`."""
        weights_BT = batch.mask_BT.float()
        if self.config.loss_aggregation == "sequence-mean":
            weights_BT = weights_BT / weights_BT.sum(-1, keepdim=True).clamp(min=1.0)
        return Advantages(weights_BT)

    def denominator(self, mask_BT: Tensor) -> float:
        """Decisions, or rows that have some."""
        if self.config.loss_aggregation == "sequence-mean":
            return float(mask_BT.any(-1).sum())
        return float(mask_BT.sum())

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """Weighted negative log-likelihood, summed."""
        nll_BT = -torch.where(batch.mask_BT, outputs.logprobs_BT, 0.0)
        return LossTerms(
            (batch.advantages_BT * nll_BT).sum(),
            {"imitation_loss": (nll_BT.detach().sum(), batch.mask_BT.sum())},
        )
