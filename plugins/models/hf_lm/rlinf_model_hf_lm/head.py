"""Log-probabilities and entropies straight from hidden states: the vocabulary-wide logits of a chunk
of positions exist only while the chunk is worked on, and are made again in the backward pass.

Axes: N response positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf_core.rl.logprobs import apply_sampling_transform, entropy_of, logits_gradient
from rlinf_core.types import Sampling

CHUNK_ELEMENTS = 1 << 22  # logits alive at once (16 MiB in float32)


def fused_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, sampling: Sampling, want_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Float32 log-probabilities `[N]` of `ids_N` under the sampling transform, and entropies `[N]`."""
    if torch.is_autocast_enabled(hidden_NH.device.type):
        dtype = torch.get_autocast_dtype(hidden_NH.device.type)
        hidden_NH, weight_VH = hidden_NH.to(dtype), weight_VH.to(dtype)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        logprobs_N, entropy_N = _FusedHead.apply(hidden_NH, weight_VH, ids_N, sampling, want_entropy)
    return logprobs_N, entropy_N if want_entropy else None


class _FusedHead(torch.autograd.Function):
    """One chunk keeps its probabilities for the backward pass; several make them again."""

    @staticmethod
    def forward(  # Any: autograd's context object
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, sampling: Sampling, want_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        rows = len(ids_N)
        ctx.size = max(1, CHUNK_ELEMENTS // weight_VH.shape[0])
        ctx.sampling, ctx.want_entropy, ctx.kept = sampling, want_entropy, None
        logprobs_N = hidden_NH.new_empty(rows, dtype=torch.float32)
        entropy_N = torch.empty_like(logprobs_N) if want_entropy else logprobs_N.new_empty(0)
        for begin in range(0, rows, ctx.size):
            part = slice(begin, begin + ctx.size)
            logs_V = _log_distribution(hidden_NH[part], weight_VH, ids_N[part], sampling)
            logprobs_N[part] = logs_V.gather(1, ids_N[part, None]).squeeze(1)
            if want_entropy:
                entropy_N[part] = entropy_of(logs_V)
            if rows <= ctx.size:
                ctx.kept = logs_V
        ctx.save_for_backward(hidden_NH, weight_VH, ids_N, entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_N, entropy_N = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden_NH) if need_hidden else None
        weight_grad = torch.zeros_like(weight_VH) if need_weight else None
        for begin in range(0, len(ids_N), ctx.size):
            part = slice(begin, begin + ctx.size)
            logs_V = ctx.kept
            if logs_V is None:
                logs_V = _log_distribution(hidden_NH[part], weight_VH, ids_N[part], ctx.sampling)
            entropies = (logs_V, entropy_N[part], grads[1][part]) if ctx.want_entropy else None
            logits_grad = logits_gradient(logs_V.exp(), ids_N[part], grads[0][part], entropies)
            if ctx.sampling.temperature not in (0.0, 1.0):
                logits_grad.div_(ctx.sampling.temperature)
            logits_grad = logits_grad.to(weight_VH.dtype)
            if hidden_grad is not None:
                torch.mm(logits_grad, weight_VH, out=hidden_grad[part])
            if weight_grad is not None:
                weight_grad.addmm_(logits_grad.t(), hidden_NH[part])
        return hidden_grad, weight_grad, None, None, None


def _log_distribution(hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, sampling: Sampling) -> Tensor:
    logits_NV = hidden_NH @ weight_VH.t()
    return torch.log_softmax(apply_sampling_transform(logits_NV, sampling, ids_N), dim=-1)
