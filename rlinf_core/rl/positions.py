"""Decisions that have several positions each, every one with a log-probability of its own.

Axes: B rows, D decisions, K positions of a decision, T = D K positions, those of a decision in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def decision_mask(mask_BT: Tensor, positions: int) -> Tensor:
    """`[B, D]`: decisions with a position under the mask."""
    return mask_BT.reshape(*mask_BT.shape[:-1], -1, positions).any(-1)


def decision_sums(column_BT: Tensor, mask_BT: Tensor, positions: int) -> Tensor:
    """`[B, D]`: what the positions of each decision have under the mask together, such as rewards."""
    return column_BT.masked_fill(~mask_BT, 0.0).reshape(*mask_BT.shape[:-1], -1, positions).sum(-1)


def decision_values(column_BT: Tensor, positions: int) -> Tensor:
    """`[B, D]`: what the first position of each decision has, such as the value of its state."""
    return column_BT[..., ::positions]


def spread_over_positions(column_BD: Tensor, positions: int) -> Tensor:
    """`[B, T]`: every position has its decision's."""
    return column_BD.repeat_interleave(positions, dim=-1)
