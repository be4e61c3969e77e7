"""Truncated importance weights for the gap between rollout engine and trainer.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from rlinf_core.rl.kl import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence"]


def truncated_importance(
    trainer_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    cap: float,
    level: Level = "token",
) -> Tensor:
    """`min(trainer / rollout, cap)` at each position, without gradient; 1 off the mask.

    Truncated importance sampling (Ionides 2008), for engines that compute other probabilities than
    the trainer (Yao et al. 2025). `level="sequence"` takes the product over a row's trained tokens.
    """
    zero = trainer_logprobs_BT.new_zeros(())
    gap_BT = torch.where(mask_BT, trainer_logprobs_BT.detach(), zero)
    gap_BT = gap_BT - torch.where(mask_BT, rollout_logprobs_BT, zero)
    if level == "sequence":
        gap_BT = gap_BT.sum(-1, keepdim=True) * mask_BT
    return gap_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=cap).masked_fill(~mask_BT, 1.0)
