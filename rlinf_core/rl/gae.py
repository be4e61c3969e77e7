"""Generalised advantage estimation, and discounted returns, over decisions.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlinf_core.rl.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float,
    lam: float,
    terminated_BT: Tensor | None = None,
    truncated_BT: Tensor | None = None,
    final_values_BT: Tensor | None = None,
    last_values_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, `[B, T]`, 0 off the mask (Schulman et al. 2016).

        delta_t = r_t + gamma V_next - V_t
        A_t = delta_t + gamma lam A_next

    *next* is the row's next position under the mask: what tools or environments wrote in between
    takes no step, so nothing is discounted for it, and nothing off the mask is read. An episode that
    ends at t (`terminated_BT`, `truncated_BT`) takes nothing from the next position; after a time limit
    V_next is `final_values_BT[t]`, the value of the last observation before the reset, after termination
    0. Both at once is a termination. A row that ends while its episode runs bootstraps from
    `last_values_B` (0 if not given).
    """
    values_BT, rewards_BT = at_least_float32(values_BT), at_least_float32(rewards_BT)
    terminated_BT = torch.zeros_like(mask_BT) if terminated_BT is None else terminated_BT
    bootstrap_BT = _next_values(values_BT, mask_BT, last_values_B).masked_fill(terminated_BT, 0.0)
    ended_BT = terminated_BT
    if truncated_BT is not None:
        ended_BT = terminated_BT | truncated_BT
        at_limit_BT = 0.0 if final_values_BT is None else final_values_BT.to(values_BT.dtype)
        bootstrap_BT = torch.where(truncated_BT & ~terminated_BT, at_limit_BT, bootstrap_BT)
    deltas_BT = (rewards_BT + gamma * bootstrap_BT - values_BT).masked_fill(~mask_BT, 0.0)
    decays_BT = torch.full_like(values_BT, gamma * lam).masked_fill(ended_BT, 0.0).masked_fill(~mask_BT, 1.0)
    advantages_BT = _accumulated(deltas_BT, decays_BT).masked_fill(~mask_BT, 0.0)
    return advantages_BT, (advantages_BT + values_BT).masked_fill(~mask_BT, 0.0)


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """`R_t = r_t + gamma R_next`, `[B, T]`, 0 off the mask; *next* as in `gae`."""
    return gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma=gamma, lam=1.0)[1]


def _next_values(values_BT: Tensor, mask_BT: Tensor, last_values_B: Tensor | None) -> Tensor:
    """The value at each position's next one under the mask, or the row's last value."""
    rows, steps = values_BT.shape
    last_B = values_BT.new_zeros(rows) if last_values_B is None else last_values_B.to(values_BT.dtype)
    places_T = torch.arange(steps, device=values_BT.device)
    here_BT = torch.where(mask_BT, places_T, steps)
    from_here_BT = here_BT.flip(-1).cummin(-1).values.flip(-1)
    after_BT = torch.cat([from_here_BT[:, 1:], torch.full_like(from_here_BT[:, :1], steps)], dim=-1)
    return torch.cat([values_BT, last_B[:, None]], dim=-1).gather(-1, after_BT)


def _accumulated(deltas_BT: Tensor, decays_BT: Tensor) -> Tensor:
    """`x_t = delta_t + decay_t x_{t+1}`."""
    sums = [deltas_BT.new_zeros(len(deltas_BT))]
    for delta_B, decay_B in zip(
        reversed(deltas_BT.t().contiguous().unbind()),
        reversed(decays_BT.t().contiguous().unbind()),
        strict=True,
    ):
        sums.append(torch.addcmul(delta_B, decay_B, sums[-1]))
    return torch.stack(sums[:0:-1], dim=-1) if len(sums) > 1 else deltas_BT
