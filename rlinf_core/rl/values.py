"""The loss of a value function, and how much of the returns it explains. Axes: B rows, T decision steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlinf_core.rl.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ValueLoss:
    """A loss at each position, and where the clip took its gradient away (bool)."""

    loss_BT: Tensor
    clipped_BT: Tensor


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    *,
    clip: float | None,
    huber_delta: float | None,
) -> ValueLoss:
    """`max(e(v - R), e(clip(v, old - clip, old + clip) - R))` with `e(x) = x^2 / 2`.

    Values are clipped as PPO's first implementation does it (Dhariwal et al., OpenAI Baselines 2017;
    Schulman et al. 2017 have no value clip); `clip=None` leaves it out. With `huber_delta`, `e(x)` is
    `delta (|x| - delta / 2)` beyond `delta` (Huber 1964).

    Positions off the mask hold whatever their inputs give: leave them to the aggregation.
    """
    values_BT, returns_BT = at_least_float32(values_BT), at_least_float32(returns_BT)
    plain_BT = _error(values_BT - returns_BT, huber_delta)
    if clip is None:
        return ValueLoss(plain_BT, torch.zeros_like(plain_BT, dtype=torch.bool))
    old_values_BT = at_least_float32(old_values_BT)
    near_BT = torch.clamp(values_BT, old_values_BT - clip, old_values_BT + clip)
    bounded_BT = _error(near_BT - returns_BT, huber_delta)
    clipped_BT = bounded_BT > plain_BT
    return ValueLoss(torch.where(clipped_BT, bounded_BT, plain_BT), clipped_BT)


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> float:
    """`1 - Var(R - V) / Var(R)` over all unmasked positions: 1 is perfect, 0 no better than a constant.

    Call it with the whole step. 0 where returns do not differ by more than their rounding, since there
    is nothing to explain.
    """
    returns = returns_BT[mask_BT].double()
    if returns.numel() == 0:
        return 0.0
    spread = returns.var(correction=0)
    if spread <= (1e-6 * returns.abs().max()).square():
        return 0.0
    residual = returns - values_BT[mask_BT].double()
    return float(1.0 - residual.var(correction=0) / spread)


def _error(difference_BT: Tensor, huber_delta: float | None) -> Tensor:
    if huber_delta is None:
        return 0.5 * difference_BT.square()
    return torch.nn.functional.huber_loss(
        difference_BT, torch.zeros_like(difference_BT), reduction="none", delta=huber_delta
    )
