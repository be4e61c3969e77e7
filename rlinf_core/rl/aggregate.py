"""How a loss per decision becomes one number: a sum for each micro-batch, one denominator for all.

`summed(...)` of the micro-batches of any split add up, and their total divided by `denominator(...)`
of the whole is:

    token-mean             mean over all trained tokens
    token-sum              sum over all trained tokens
    seq-mean-token-mean    mean over rows of each row's mean (GRPO, Shao et al. 2024)
    seq-mean-token-sum     mean over rows of each row's sum
    seq-mean-token-sum-norm  the same, each sum divided by a constant (Dr. GRPO, Liu et al. 2025)

Rows without a trained token count nowhere. Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from rlinf_core.errors import ConfigError
from rlinf_core.rl.masks import kept
from rlinf_core.rl.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]


def summed(values_BT: Tensor, mask_BT: Tensor | None, mode: Aggregation, norm: float = 1.0) -> Tensor:
    """The part of these rows in the numerator. Positions off the mask (None: nothing is) are never read."""
    trained_BT = kept(at_least_float32(values_BT), mask_BT)
    if mode in ("token-mean", "token-sum"):
        return trained_BT.sum()
    sums_B = trained_BT.sum(-1)
    if mode == "seq-mean-token-mean":
        lengths_B = values_BT.shape[-1] if mask_BT is None else mask_BT.sum(-1).clamp(min=1)
        return (sums_B / lengths_B).sum()
    if mode == "seq-mean-token-sum-norm":
        return sums_B.sum() / norm
    return sums_B.sum()


def denominator(mask_BT: Tensor, mode: Aggregation) -> float:
    """What the total is divided by: additive over rows, but for `token-sum`, where it is 1."""
    check_mode(mode)
    if mode == "token-sum":
        return 1.0
    if mode == "token-mean":
        return float(mask_BT.sum())
    return float(mask_BT.any(-1).sum())


def check_mode(mode: str, key: str = "loss_aggregation") -> None:
    """Raises `ConfigError` for an unknown mode."""
    known = get_args(Aggregation)
    if mode not in known:
        raise ConfigError(f"{key}: {mode!r} is not an aggregation; use one of {', '.join(known)}")
