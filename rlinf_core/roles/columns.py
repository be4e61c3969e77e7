"""The tensors of one step, their micro-batches, and what is measured of each (B rows, T decision steps)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf_core.api import LossTerms, PolicyOutputs, TrainBatch


@dataclass
class Columns:
    """The step's `[B, T]` tensors; `fresh` while the weights are those that generated the rows."""

    mask_BT: Tensor
    advantages_BT: Tensor
    rollout_BT: Tensor
    old_BT: Tensor | None = None
    reference_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    values_BT: Tensor | None = None
    max_length: int = 0
    fresh: bool = True

    def micro_batch(self, chosen: list[int], width: int, inputs: dict[str, Tensor]) -> TrainBatch:
        """Some rows, cut to `width` decisions."""
        chosen_B = torch.tensor(chosen)

        def cut(column_BT: Tensor | None) -> Tensor | None:
            return None if column_BT is None else column_BT[chosen_B, :width]

        return TrainBatch(
            inputs=inputs,
            mask_BT=self.mask_BT[chosen_B, :width],
            advantages_BT=self.advantages_BT[chosen_B, :width],
            rollout_logprobs_BT=self.rollout_BT[chosen_B, :width],
            old_logprobs_BT=cut(self.old_BT),
            reference_logprobs_BT=cut(self.reference_BT),
            returns_BT=cut(self.returns_BT),
            values_BT=cut(self.values_BT),
            max_length=self.max_length,
        )


class Mismatch:
    """Wraps a loss and measures trainer against rollout log-probabilities before any clipping."""

    def __init__(self, loss: Any, fresh: bool) -> None:  # Any: a LossFunction
        self.loss = loss
        self.fresh = fresh and loss is not imitation_loss
        self.peak = 0.0

    def __call__(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        terms: LossTerms = self.loss(outputs, batch)
        if self.fresh and bool(batch.mask_BT.any()):
            gap_BT = (outputs.logprobs_BT.detach() - batch.rollout_logprobs_BT)[batch.mask_BT]
            terms.metrics["logprob_mismatch"] = (gap_BT.abs().sum(), gap_BT.numel())
            terms.metrics["mismatch_kl"] = ((gap_BT.exp() - 1 - gap_BT).sum(), gap_BT.numel())
            self.peak = max(self.peak, float(gap_BT.abs().max()))
        return terms


def imitation_loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    """The summed negative log-likelihood of the rows' decisions."""
    nll_BT = -outputs.logprobs_BT * batch.mask_BT
    total = nll_BT.sum()
    return LossTerms(total, {"imitation_loss": (total.detach(), batch.mask_BT.sum())})
