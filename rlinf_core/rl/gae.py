"""Generalised advantage estimation over decisions. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

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
    """Advantages and returns, `[B, T]` float32, 0 off the mask (Schulman et al. 2016).

        delta_t = r_t + gamma V_next - V_t
        A_t = delta_t + gamma lam A_next

    *next* is the row's next position under the mask: what tools or environments wrote in between
    takes no step, so nothing is discounted for it. An episode that ends at t (`terminated_BT`,
    `truncated_BT`) takes nothing from the next position; after a time limit V_next is
    `final_values_BT[t]`, the value of the last observation before the reset, after termination 0.
    A row that ends while its episode runs bootstraps from `last_values_B` (0 if not given).
    """
    zeros_BT = torch.zeros_like(values_BT, dtype=torch.float32)
    no_BT = torch.zeros_like(mask_BT)
    terminated_BT = no_BT if terminated_BT is None else terminated_BT
    truncated_BT = no_BT if truncated_BT is None else truncated_BT & ~terminated_BT
    final_values_BT = zeros_BT if final_values_BT is None else final_values_BT
    next_value_B = zeros_BT.new_zeros(len(values_BT)) if last_values_B is None else last_values_B.float()
    carried_B = torch.zeros_like(next_value_B)
    advantages_BT = zeros_BT.clone()
    for t in reversed(range(values_BT.shape[1])):
        mask_B, value_B = mask_BT[:, t], values_BT[:, t].float()
        bootstrap_B = next_value_B.masked_fill(terminated_BT[:, t], 0.0)
        bootstrap_B = torch.where(truncated_BT[:, t], final_values_BT[:, t].float(), bootstrap_B)
        kept_B = carried_B.masked_fill(terminated_BT[:, t] | truncated_BT[:, t], 0.0)
        advantage_B = rewards_BT[:, t] + gamma * bootstrap_B - value_B + gamma * lam * kept_B
        advantages_BT[:, t] = advantage_B.masked_fill(~mask_B, 0.0)
        carried_B = torch.where(mask_B, advantage_B, carried_B)
        next_value_B = torch.where(mask_B, value_B, next_value_B)
    returns_BT = (advantages_BT + values_BT.float()).masked_fill(~mask_BT, 0.0)
    return advantages_BT, returns_BT
