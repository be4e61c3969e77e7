"""The tensors of one step, their micro-batches, and what is measured of each (B rows, T decision steps)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlinf_core.api import Collator, LossTerms, PolicyOutputs, TrainBatch


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
    collator: Collator | None = None  # of the model, where it has one for these rows

    def micro_batch(self, chosen_B: Tensor, width: int, inputs: dict[str, Tensor]) -> TrainBatch:
        """The rows at these places, cut to `width` decisions."""

        def cut(column_BT: Tensor) -> Tensor:
            rows_BT = column_BT.index_select(0, chosen_B)
            return rows_BT if width == rows_BT.shape[1] else rows_BT[:, :width]

        def cut_present(column_BT: Tensor | None) -> Tensor | None:
            return None if column_BT is None else cut(column_BT)

        return TrainBatch(
            inputs=inputs,
            mask_BT=cut(self.mask_BT),
            advantages_BT=cut(self.advantages_BT),
            rollout_logprobs_BT=cut(self.rollout_BT),
            old_logprobs_BT=cut_present(self.old_BT),
            reference_logprobs_BT=cut_present(self.reference_BT),
            returns_BT=cut_present(self.returns_BT),
            values_BT=cut_present(self.values_BT),
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
        if self.fresh and batch.decisions:
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
