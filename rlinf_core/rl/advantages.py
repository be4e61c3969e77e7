"""Advantages from outcome rewards: group baselines, and whitening over the whole batch.

Axes: B rows, T decision steps, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from rlinf_core.rl.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor

Baseline = Literal["group", "leave-one-out"]

EPSILON = 1e-6


@dataclass(frozen=True)
class GroupStatistics:
    """Per group, in order of ascending group id."""

    sizes_G: Tensor  # as floats
    means_G: Tensor
    stds_G: Tensor  # of the sample (divided by n - 1); 0 in groups of one
    equal_G: Tensor  # bool; all rewards are the same number
    index_B: Tensor  # row -> position of its group


def group_statistics(rewards_B: Tensor, groups_B: Tensor) -> GroupStatistics:
    """Sizes, means and standard deviations of groups given by id; rows may come in any order."""
    rewards_B = at_least_float32(rewards_B)
    ids_G, index_B = torch.unique(groups_B, return_inverse=True)
    zeros_G = rewards_B.new_zeros(len(ids_G))
    sizes_G = zeros_G.scatter_add(0, index_B, torch.ones_like(rewards_B))
    means_G = zeros_G.scatter_add(0, index_B, rewards_B) / sizes_G
    squares_G = zeros_G.scatter_add(0, index_B, (rewards_B - means_G[index_B]).square())
    low_G = zeros_G.scatter_reduce(0, index_B, rewards_B, "amin", include_self=False)
    high_G = zeros_G.scatter_reduce(0, index_B, rewards_B, "amax", include_self=False)
    equal_G = low_G == high_G
    stds_G = (squares_G / (sizes_G - 1).clamp(min=1)).sqrt().masked_fill(equal_G, 0.0)
    return GroupStatistics(sizes_G, means_G, stds_G, equal_G, index_B)


def batch_statistics(rewards_B: Tensor) -> GroupStatistics:
    """All rows as one group: with `group_advantages`, the mean of the whole batch is the baseline."""
    return group_statistics(rewards_B, torch.zeros_like(rewards_B, dtype=torch.int64))


def group_advantages(
    rewards_B: Tensor,
    statistics: GroupStatistics,
    *,
    baseline: Baseline = "group",
    scale_by_std: bool = True,
    epsilon: float = EPSILON,
) -> Tensor:
    """`(r - baseline) / (std + epsilon)` over each group; exactly 0 where all rewards are equal.

    `group`: the mean of the group (GRPO, Shao et al. 2024; unscaled: Dr. GRPO, Liu et al. 2025).
    `leave-one-out`: the mean of the others (RLOO, Ahmadian et al. 2024), `(r - mean) n / (n - 1)`.
    The std is always the whole group's, so that equal others cannot make it vanish.
    """
    index_B = statistics.index_B
    centred_B = at_least_float32(rewards_B) - statistics.means_G[index_B]
    if baseline == "leave-one-out":
        sizes_G = statistics.sizes_G
        centred_B = centred_B * (sizes_G / (sizes_G - 1).clamp(min=1))[index_B]
    if scale_by_std:
        centred_B = centred_B / (statistics.stds_G[index_B] + epsilon)
    return centred_B.masked_fill(statistics.equal_G[index_B], 0.0)


def whiten(values_BT: Tensor, mask_BT: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """`(x - mean) / sqrt(var + epsilon)` over all unmasked positions of the batch, 0 elsewhere.

    The variance is the sample's; values that are all equal become 0. Call it with the whole step, never
    with one rank's part.
    """
    values_BT = at_least_float32(values_BT)
    chosen = values_BT[mask_BT].double()
    if chosen.numel() == 0 or bool((chosen == chosen[0]).all()):
        return torch.zeros_like(values_BT)
    whitened_BT = (values_BT.double() - chosen.mean()) / (chosen.var() + epsilon).sqrt()
    return whitened_BT.masked_fill(~mask_BT, 0.0).to(values_BT.dtype)


def spread_over_tokens(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Every trained decision of a row gets the row's advantage."""
    return advantages_B[:, None] * mask_BT


def on_last_decision(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The outcome reward on the last unmasked position of each row, wherever its padding is; 0 elsewhere."""
    later_BT = mask_BT.flip(-1).cumsum(-1).flip(-1)
    last_BT = mask_BT & (later_BT == 1)
    return at_least_float32(rewards_B)[:, None].expand_as(last_BT).masked_fill(~last_BT, 0.0)
