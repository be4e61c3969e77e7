"""Examples small enough for pen and paper, on which rlinf and its peers differ.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from crosscheck_batches import Batch
from crosscheck_losses import Loss, our_loss, with_gradient
from rlinf_algo_grpo.algorithm import GRPO
from rlinf_algo_grpo.config import GRPOConfig
from torch import Tensor

from rlinf_core.objective import PolicyOptions

Number = float | Tensor
Peer = ModuleType  # crosscheck_verl or crosscheck_trl
Rows = Sequence[Sequence[float]]
Measure = Callable[[Loss, Batch], Number]


@dataclass(frozen=True)
class Case:
    """One difference: our number, and the peer's from the peer's own code. Either may raise instead."""

    ours: Callable[[], Number]
    theirs: Callable[[Peer], Number]


def example(log_ratios: Rows, advantages: Rows | None = None, **columns: Rows) -> Batch:
    """Rows of these lengths, with old log-probabilities of -1 and advantages of 1; the rest is 0."""
    steps = max(map(len, log_ratios))

    def padded(rows: Rows) -> Tensor:
        full = [[*row, *[0.0] * (steps - len(row))] for row in rows]
        return torch.tensor(full, dtype=torch.float64)

    lengths_B = torch.tensor([len(row) for row in log_ratios])
    zeros_BT = torch.zeros(len(log_ratios), steps, dtype=torch.float64)
    batch = Batch(
        mask_BT=torch.arange(steps)[None] < lengths_B[:, None],
        groups_B=torch.zeros(len(log_ratios), dtype=torch.int64),
        rewards_B=zeros_BT[:, 0],
        rewards_BT=zeros_BT,
        old_BT=zeros_BT - 1.0,
        new_BT=padded(log_ratios) - 1.0,
        reference_BT=zeros_BT - 1.0,
        rollout_BT=zeros_BT - 1.0,
        entropy_BT=zeros_BT,
        advantages_BT=zeros_BT + 1.0 if advantages is None else padded(advantages),
        values_BT=zeros_BT,
        old_values_BT=zeros_BT,
    )
    return replace(batch, **{name: padded(rows) for name, rows in columns.items()})


def one(log_ratio: float, advantage: float) -> Batch:
    """A row of one decision."""
    return example([[log_ratio]], [[advantage]])


def rewarded(*rewards: float, dtype: torch.dtype = torch.float64) -> Batch:
    """One group of rows of one decision."""
    return replace(example([[0.0]] * len(rewards)), rewards_B=torch.tensor(rewards, dtype=dtype))


def value(loss: Loss, batch: Batch) -> Number:
    """What a loss is."""
    return loss(batch.new_BT)[0]


def slope(loss: Loss, batch: Batch) -> Number:
    """Its derivative by the first log-probability."""
    return with_gradient(lambda logprobs_BT: loss(logprobs_BT)[0], batch.new_BT)[1][0, 0]


def metric(loss: Loss, batch: Batch, name: str) -> Number:
    """One of its metrics."""
    number: Number = loss(batch.new_BT)[1][name]
    return number


def ours(batch: Batch, config: PolicyOptions | None = None, **options: Any) -> Loss:
    """Our loss with the batch's advantages."""
    return our_loss(batch, config or PolicyOptions(**options), batch.advantages_BT)


def our_advantage(batch: Batch, config: GRPOConfig | None = None) -> Number:
    """Of the first row."""
    return GRPO(config or GRPOConfig()).advantages(batch.scored()).advantages_BT[0, 0]


SEQUENCE = PolicyOptions(importance_level="sequence")

FOUR = example([[1.6, 0.1, -0.5, 0.5]], [[-1.0, -1.0, -1.0, 1.0]])
GOOD_AND_BAD = example([[0.0], [0.0, 0.0, 0.0]], [[1.0], [-1.0, -1.0, -1.0]])
SEVEN = rewarded(*[0.7] * 7, dtype=torch.float32)
