"""Policy losses per decision. Axes: B rows, T decision steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from rlinf_core.rl.masks import kept
from rlinf_core.rl.precision import LOG_RATIO_LIMIT, at_least_float32, bounded_exp

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """A loss at each position, and where the clips took its gradient away (bool)."""

    loss_BT: Tensor
    clipped_BT: Tensor  # the range clip decided the loss
    dual_clipped_BT: Tensor  # the dual clip decided it


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """`log policy - log old policy`, 0 off the mask (None: there is nothing) whatever stands there.

    Without old log-probabilities the policy is its own sampler: the ratio is 1 with its gradient.
    """
    if old_logprobs_BT is None:
        old_logprobs_BT = logprobs_BT.detach()
    new_BT, old_BT = at_least_float32(logprobs_BT), at_least_float32(old_logprobs_BT)
    return kept(new_BT - old_BT, mask_BT)


def sequence_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean log-ratio of each row at each of its positions: the length-normalised sequence ratio
    of GSPO (Zheng et al. 2025), with its gradient."""
    lengths_B = mask_BT.sum(-1).clamp(min=1)
    means_B = (log_ratio_BT * mask_BT).sum(-1) / lengths_B
    return means_B[:, None] * mask_BT


def clipped_policy_loss(
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """`max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = exp(log_ratio)`.

    PPO (Schulman et al. 2017); different bounds above and below as in DAPO (Yu et al. 2025). Where
    `A < 0` the loss is at most `-dual_clip A` (dual-clip PPO, Ye et al. 2020).
    """
    apply: Any = _Clipped.apply  # torch does not annotate it
    loss_BT, clipped_BT = apply(at_least_float32(log_ratio_BT), advantages_BT, 1 - clip_low, 1 + clip_high)
    if dual_clip is None:
        return PolicyLoss(loss_BT, clipped_BT, torch.zeros_like(clipped_BT))
    ceiling_BT = -dual_clip * advantages_BT
    dual_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
    return PolicyLoss(torch.where(dual_BT, ceiling_BT, loss_BT), clipped_BT, dual_BT)


class _Clipped(torch.autograd.Function):
    """The loss, and where the clip decides it. The derivative by the log-ratio is the unclipped loss itself,
    or 0: one operation, where the steps of the formula have a dozen."""

    @staticmethod
    def forward(  # Any: autograd's context object
        ctx: Any, log_ratio_BT: Tensor, advantages_BT: Tensor, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        ratio_BT = bounded_exp(log_ratio_BT)
        plain_BT = -ratio_BT * advantages_BT
        bounded_BT = -ratio_BT.clamp(low, high) * advantages_BT
        clipped_BT = bounded_BT > plain_BT
        constant_BT = clipped_BT | (log_ratio_BT.abs() > LOG_RATIO_LIMIT)
        ctx.save_for_backward(plain_BT.masked_fill(constant_BT, 0.0))
        ctx.mark_non_differentiable(clipped_BT)
        return torch.maximum(plain_BT, bounded_BT), clipped_BT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BT: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (slope_BT,) = ctx.saved_tensors
        return grad_BT * slope_BT, None, None, None


def weighted_policy_loss(
    logprobs_BT: Tensor,
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """`-clip(r, 1 - clip_low, 1 + clip_high) A log policy`, the weight without gradient.

    CISPO (MiniMax-M1, 2025): every decision keeps a gradient, only its weight is bounded.
    """
    ratio_BT = bounded_exp(log_ratio_BT.detach())
    weights_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = -weights_BT * advantages_BT * logprobs_BT
    return PolicyLoss(loss_BT, weights_BT != ratio_BT, torch.zeros_like(loss_BT, dtype=torch.bool))
