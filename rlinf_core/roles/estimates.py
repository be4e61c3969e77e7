"""What a trainer says of rows before it updates: log-probabilities, values, and values of last states.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlinf_core.types import Experience, Trajectory

if TYPE_CHECKING:
    from rlinf_core.api import Model, Trainer, Want

LOGPROBS: frozenset[Want] = frozenset({"logprobs"})
VALUES: frozenset[Want] = frozenset({"values"})


@dataclass
class Estimates:
    """Of some rows; what was not asked for is zero."""

    logprobs_BT: Tensor
    values_BT: Tensor
    final_values_B: Tensor  # 0 where no time limit cut the row

    @classmethod
    def zeros(cls, rows: int, steps: int) -> Estimates:
        """Room for estimates."""
        return cls(torch.zeros(rows, steps), torch.zeros(rows, steps), torch.zeros(rows))

    def put(self, part: Sequence[int], found: Estimates) -> None:
        """Fill the rows at these positions."""
        width = found.logprobs_BT.shape[1]
        self.logprobs_BT[part, :width] = found.logprobs_BT
        self.values_BT[part, :width] = found.values_BT
        self.final_values_B[part] = found.final_values_B

    def sum_over_ranks(self, trainer: Trainer, want: frozenset[Want]) -> None:
        """Make what was asked for, of every rank's share, that of all rows."""
        tensors = [self.logprobs_BT] if "logprobs" in want else []
        tensors += [self.values_BT, self.final_values_B] if "values" in want else []
        for tensor in tensors:
            summed = trainer.all_sum(tensor.flatten().tolist())
            tensor.copy_(torch.tensor(summed, dtype=torch.float32).view_as(tensor))


def estimate(
    trainer: Trainer,
    model: Model,
    rows: Sequence[Experience],
    want: frozenset[Want],
    *,
    reference: bool = False,
) -> Estimates:
    """Estimates of these rows (one or more), in one forward pass without gradient."""
    last = {i: state for i, row in enumerate(rows) if "values" in want and (state := _last_state(row))}
    width = max(len(row.mask) for row in rows)
    inputs = model.collate([*rows, *last.values()], width)
    outputs = trainer.outputs(inputs, want, reference=reference)
    found = Estimates.zeros(len(rows), width)
    found.logprobs_BT = outputs.logprobs_BT.float().cpu()[: len(rows)]
    if outputs.values_BT is not None:
        values_BT = outputs.values_BT.float().cpu()
        found.values_BT = values_BT[: len(rows)]
        found.final_values_B[list(last)] = values_BT[len(rows) :, 0]
    return found


def _last_state(row: Experience) -> Trajectory | None:
    """A row of one decision, at what was seen last of an episode that a time limit cut; else None."""
    if not isinstance(row, Trajectory) or not row.truncated or row.final_observation is None:
        return None
    return replace(
        row,
        mask=np.ones(1, dtype=bool),
        logprobs=np.zeros(1, dtype=np.float32),
        observations={name: array[None] for name, array in row.final_observation.items()},
        actions=np.zeros_like(row.actions[:1]),
        executed=None if row.executed is None else np.ones_like(row.executed[:1]),
        latents=None if row.latents is None else row.latents[:1],
    )
