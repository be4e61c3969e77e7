"""Random batches with gaps, empty rows, groups of equal rewards and extreme ratios; everything in float64.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch

SPREADS = (0.02, 0.4, 2.0)  # standard deviations of the log-ratio


@dataclass
class Batch:
    """One step's numbers. What stands off the mask is junk."""

    mask_BT: Tensor  # bool
    groups_B: Tensor
    rewards_B: Tensor
    rewards_BT: Tensor  # the reward on the last trained decision, small ones before it
    old_BT: Tensor
    new_BT: Tensor
    reference_BT: Tensor
    rollout_BT: Tensor
    entropy_BT: Tensor
    advantages_BT: Tensor
    values_BT: Tensor
    old_values_BT: Tensor
    longest: int = 0  # decisions that a row may have; 0 = as wide as the batch

    @property
    def weights_BT(self) -> Tensor:
        """The mask as numbers."""
        return self.mask_BT.double()

    @property
    def row_advantages_BT(self) -> Tensor:
        """One advantage a row, at each of its positions, off the mask too."""
        return self.advantages_BT[:, :1].expand_as(self.advantages_BT)

    def outcome_BT(self) -> Tensor:
        """The outcome reward alone, on the last trained decision of each row that has one."""
        return self.rewards_B[:, None] * last_decisions(self.mask_BT)

    def train_batch(self, advantages_BT: Tensor | None = None, on_policy: bool = False) -> TrainBatch:
        """As our losses take it."""
        return TrainBatch(
            inputs={},
            mask_BT=self.mask_BT,
            advantages_BT=self.advantages_BT if advantages_BT is None else advantages_BT,
            rollout_logprobs_BT=self.rollout_BT,
            old_logprobs_BT=None if on_policy else self.old_BT,
            reference_logprobs_BT=self.reference_BT,
            values_BT=self.old_values_BT,
            max_length=self.longest or self.mask_BT.shape[1],
        )

    def outputs(self, logprobs_BT: Tensor) -> PolicyOutputs:
        """What the policy says, with these log-probabilities."""
        return PolicyOutputs(logprobs_BT, entropy_BT=self.entropy_BT, values_BT=self.values_BT)

    def scored(self) -> ScoredBatch:
        """As `Algorithm.advantages` takes it."""
        return ScoredBatch(
            rewards_B=self.rewards_B,
            groups_B=self.groups_B,
            mask_BT=self.mask_BT,
            logprobs_BT=self.old_BT,
            truncated_B=torch.zeros(len(self.rewards_B), dtype=torch.bool),
            reference_logprobs_BT=self.reference_BT,
            values_BT=self.old_values_BT,
            baselines_B=self.advantages_BT[:, 0],
            max_length=self.longest or self.mask_BT.shape[1],
        )


def last_decisions(mask_BT: Tensor) -> Tensor:
    """Ones at the last trained decision of each row."""
    later_BT = mask_BT.flip(-1).cumsum(-1).flip(-1)
    return ((later_BT == 1) & mask_BT).double()


@dataclass(frozen=True)
class Kind:
    """What batches have."""

    gaps: bool = True  # decisions off the mask between trained ones
    empty: bool = True  # rows without a trained decision
    blocks: bool = False  # groups are blocks of one size
    ratios: Literal["near", "any", "extreme"] = "any"  # log-ratios: up to 1.2, a few, some beyond 20


def batches(count: int, **kind: Any) -> Iterator[Batch]:
    """`count` batches, the same ones every time; each has at least two trained decisions."""
    for seed in range(count):
        yield _batch(torch.Generator().manual_seed(seed), SPREADS[seed % len(SPREADS)], Kind(**kind))


def _batch(generator: torch.Generator, spread: float, kind: Kind) -> Batch:
    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    groups_B = _groups(generator, kind.blocks)
    rows, steps = len(groups_B), int(torch.randint(2, 12, (), generator=generator))
    mask_BT = _mask(generator, rows, steps, kind)
    rewards_B = _rewards(generator, groups_B)
    old_BT = -normal(rows, steps).abs() - 0.01
    moved_BT = normal(rows, steps, scale=spread)
    if kind.ratios == "near":
        moved_BT = moved_BT.clamp(-1.2, 1.2)
    elif kind.ratios == "extreme":
        far_BT = torch.rand(rows, steps, generator=generator) < 0.1
        moved_BT = torch.where(far_BT, normal(rows, steps, scale=30.0), moved_BT)
    values_BT = normal(rows, steps)
    rewards_BT = normal(rows, steps, scale=0.1) * mask_BT + rewards_B[:, None] * last_decisions(mask_BT)
    return Batch(
        mask_BT=mask_BT,
        groups_B=groups_B,
        rewards_B=rewards_B,
        rewards_BT=rewards_BT,
        old_BT=old_BT,
        new_BT=old_BT + moved_BT,
        reference_BT=old_BT + normal(rows, steps, scale=0.3),
        rollout_BT=old_BT + normal(rows, steps, scale=0.3),
        entropy_BT=normal(rows, steps).abs(),
        advantages_BT=normal(rows, steps),
        values_BT=values_BT + normal(rows, steps, scale=0.5),
        old_values_BT=values_BT,
    )


def _groups(generator: torch.Generator, blocks: bool) -> Tensor:
    """Ids of 1 to 4 groups of 2 to 8 rows: blocks of one size, or shuffled."""
    count = int(torch.randint(1, 5, (), generator=generator))
    sizes = torch.randint(2, 9, (count,), generator=generator)
    if blocks:
        return torch.arange(count).repeat_interleave(int(sizes[0]))
    groups_B = torch.arange(count).repeat_interleave(sizes)
    return groups_B[torch.randperm(len(groups_B), generator=generator)]


def _mask(generator: torch.Generator, rows: int, steps: int, kind: Kind) -> Tensor:
    lengths_B = torch.randint(0 if kind.empty else 1, steps + 1, (rows,), generator=generator)
    mask_BT = torch.arange(steps)[None] < lengths_B[:, None]
    if kind.gaps:
        mask_BT = mask_BT & (torch.rand(rows, steps, generator=generator) < 0.7)
        if not kind.empty:
            mask_BT[:, 0] = True
    mask_BT[0, :2] = True
    return mask_BT


def _rewards(generator: torch.Generator, groups_B: Tensor) -> Tensor:
    """Right or wrong, graded, or all equal, by group; multiples of 1/8, whose sums are exact."""
    graded_B = torch.randint(-8, 9, groups_B.shape, generator=generator).double() / 8
    kinds_G = torch.randint(0, 3, (int(groups_B.max()) + 1,), generator=generator)
    right_B = (graded_B > 0).double()
    kinds_B = kinds_G[groups_B]
    equal_B = (groups_B % 3).double() / 2
    return torch.where(kinds_B == 0, right_B, torch.where(kinds_B == 1, graded_B, equal_B))
