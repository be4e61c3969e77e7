"""Importance weights for the gap between rollout engine and trainer.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlinf_core.errors import ConfigError
from rlinf_core.rl.losses import log_ratio, sequence_log_ratio
from rlinf_core.rl.precision import bounded_exp

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "mask"]


def truncated_importance(
    trainer_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    cap: float,
    level: Level = "token",
    mode: Mode = "truncate",
) -> Tensor:
    """A weight for each position's loss, from `r = trainer / rollout`: no gradient, 1 off the mask.

    `truncate`: `min(r, cap)`, truncated importance sampling (Ionides 2008) for engines that compute
    other probabilities than the trainer (Yao et al. 2025). `mask`: r where it lies in `[1 / cap, cap]`
    and 0 elsewhere, so that decisions on which the two disagree are not trained (IcePop, Ling team 2025).

    `sequence` takes the product of r over a row's trained tokens for each of them, `geometric` their
    geometric mean, which does not grow with the length. Raises `ConfigError` if a mask would keep nothing.
    """
    if mode == "mask" and cap <= 1.0:
        raise ConfigError(
            f"importance_cap: {cap!r}: a mask keeps ratios in [1 / cap, cap]: it must be above 1"
        )
    gap_BT = log_ratio(trainer_logprobs_BT.detach(), rollout_logprobs_BT.detach(), mask_BT)
    if level == "sequence":
        gap_BT = gap_BT.sum(-1, keepdim=True).expand_as(mask_BT)
    elif level == "geometric":
        gap_BT = sequence_log_ratio(gap_BT, mask_BT)
    ratio_BT = bounded_exp(gap_BT)
    if mode == "mask":
        weights_BT = ratio_BT.masked_fill((ratio_BT > cap) | (ratio_BT < 1.0 / cap), 0.0)
    else:
        weights_BT = ratio_BT.clamp(max=cap)
    return weights_BT.masked_fill(~mask_BT, 1.0)
