"""Log-probabilities, entropies and the sampling transform that rollout and trainer share.

Axes: N positions, V vocabulary; `...` any leading axes. Everything is computed in float32, or in float64
if logits come so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from rlinf_core.rl.precision import at_least_float32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlinf_core.types import Sampling

CPU_CHUNK = 1 << 20  # logits worked on at once; 4 MiB in float32, which a processor's cache holds
OTHER_CHUNK = 1 << 24


def gather_logprobs(logits_V: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """`log softmax(logits / temperature)[ids]`, as `logits[ids] / temperature - logsumexp`.

    `logits_V` is `[..., V]`, `ids` `[...]`. For small vocabularies; `fused_logprobs` is for large ones.
    """
    scaled_V = _scaled(logits_V, temperature)
    chosen = scaled_V.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled_V, dim=-1)


def entropy(logits_V: Tensor) -> Tensor:
    """`H = logsumexp(logits) - sum(softmax(logits) * logits)` in nats; `-inf` logits have weight 0."""
    logits_V = at_least_float32(logits_V)
    finite_V = logits_V.masked_fill(logits_V == -torch.inf, 0.0)
    expected = (torch.softmax(logits_V, dim=-1) * finite_V).sum(-1)
    return torch.logsumexp(logits_V, dim=-1) - expected


def fused_logprobs(
    logits_V: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    want_entropy: bool = False,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`log softmax(logits / temperature)[ids]` and, if wanted, entropies, by chunks of positions.

    `logits_V` is `[..., V]` of any float type and layout, `ids` `[...]`. Beside the logits and, in the
    backward pass, their gradient, both in the logits' own type, only a chunk of that width exists.
    """
    if chunk_rows is None:
        elements = CPU_CHUNK if logits_V.device.type == "cpu" else OTHER_CHUNK
        chunk_rows = max(1, elements // logits_V.shape[-1])
    apply: Any = _Fused.apply  # torch does not annotate it
    logprobs, spread = apply(logits_V, ids, temperature or 1.0, want_entropy, chunk_rows)
    return logprobs, spread if want_entropy else None


def logprobs_under(
    logits_V: Tensor, ids: Tensor, sampling: Sampling, want_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`fused_logprobs` of the distribution that `apply_sampling_transform` makes; `ids` are never cut."""
    if not _truncates(sampling):
        return fused_logprobs(logits_V, ids, sampling.temperature, want_entropy)
    return fused_logprobs(apply_sampling_transform(logits_V, sampling, ids), ids, 1.0, want_entropy)


def entropy_of(logs_NV: Tensor) -> Tensor:
    """Entropies of log-probabilities that sum to one; `-inf` has weight 0."""
    weighted: Tensor = torch.linalg.vecdot(logs_NV.exp(), logs_NV.clamp_min(-1e30))
    return -weighted


def logits_gradient(
    probabilities_NV: Tensor,
    ids_N: Tensor,
    logprobs_grad_N: Tensor,
    entropies: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """The gradient of the logits, written over `probabilities_NV`.

    d log p[id] / d logits = onehot - p, and d entropy / d logits = -p (log p + entropy). `entropies` are
    the log-probabilities `[N, V]`, the entropies `[N]` and the gradient with respect to these.
    """
    weights: Tensor = -logprobs_grad_N[:, None]
    if entropies is not None:
        logs_NV, entropy_N, entropy_grad_N = entropies
        slope_NV = logs_NV.clamp_min(-1e30) + entropy_N[:, None]
        weights = slope_NV.mul_(-entropy_grad_N[:, None]).add_(weights)
    return probabilities_NV.mul_(weights).scatter_add_(1, ids_N[:, None], logprobs_grad_N[:, None])


class _Fused(torch.autograd.Function):
    """Keeps the logits alone for the backward pass, and makes each chunk's probabilities again there."""

    @staticmethod
    def forward(  # Any: autograd's context object
        ctx: Any, logits_V: Tensor, ids: Tensor, temperature: float, want_entropy: bool, rows: int
    ) -> tuple[Tensor, Tensor]:
        ctx.temperature, ctx.want_entropy, ctx.rows = temperature, want_entropy, rows
        ids_N = ids.reshape(-1)
        logprobs_N = _work_space(logits_V, ids_N.shape)
        entropy_N = _work_space(logits_V, ids_N.shape if want_entropy else (0,))
        for part, logits_CV, logs_CV in _chunks(logits_V, temperature, rows):
            torch.log_softmax(logits_CV, -1, out=logs_CV)
            logprobs_N[part] = logs_CV.gather(1, ids_N[part, None]).squeeze(1)
            if want_entropy:
                entropy_N[part] = entropy_of(logs_CV)
        ctx.save_for_backward(logits_V, ids_N, entropy_N)
        return logprobs_N.view(ids.shape), entropy_N.view(ids.shape) if want_entropy else entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits_V, ids_N, entropy_N = ctx.saved_tensors
        grad_V = torch.empty_like(logits_V, memory_format=torch.contiguous_format)
        grad_NV = grad_V.view(-1, logits_V.shape[-1])
        logprobs_grad_N, entropy_grad_N = (grad.reshape(-1) / ctx.temperature for grad in grads)
        for part, logits_CV, work_CV in _chunks(logits_V, ctx.temperature, ctx.rows):
            out_CV = grad_NV[part] if grad_V.dtype == work_CV.dtype else torch.empty_like(work_CV)
            entropies = None
            if ctx.want_entropy:
                torch.log_softmax(logits_CV, -1, out=work_CV)
                entropies = work_CV, entropy_N[part], entropy_grad_N[part]
            torch.softmax(logits_CV, -1, out=out_CV)
            logits_gradient(out_CV, ids_N[part], logprobs_grad_N[part], entropies)
            if out_CV.dtype != grad_V.dtype:
                grad_NV[part] = out_CV
        return grad_V, None, None, None, None


def is_identity(sampling: Sampling) -> bool:
    """True when the transform leaves logits as they are."""
    return sampling.temperature in (0.0, 1.0) and not _truncates(sampling)


def apply_sampling_transform(logits_V: Tensor, sampling: Sampling, keep_ids: Tensor | None = None) -> Tensor:
    """Logits of the distribution that tokens are drawn from: temperature, then top-k, then top-p.

    Tokens cut by top-k (not among the k largest) or top-p (the more probable tokens already hold
    `top_p`; Holtzman et al. 2020) become `-inf`; ties with the last kept token are kept. Greedy
    decoding (`temperature=0`) is a choice of the caller, and its logits are left as they are.

    `keep_ids` (`[...]`) are never cut: the trainer passes the tokens that were drawn, so that a
    rounding difference at the edge of the nucleus cannot make a drawn token impossible. Gradients
    flow through the kept logits; which tokens are kept is not differentiated.
    """
    scaled_V = _scaled(logits_V, sampling.temperature)
    if not _truncates(sampling):
        return scaled_V
    with torch.no_grad():
        cut_V = scaled_V < _threshold(scaled_V.detach(), sampling)
        if keep_ids is not None:
            cut_V.scatter_(-1, keep_ids.unsqueeze(-1), False)
    return scaled_V.masked_fill(cut_V, -torch.inf)


def _scaled(logits_V: Tensor, temperature: float) -> Tensor:
    logits_V = at_least_float32(logits_V)
    return logits_V if temperature in (0.0, 1.0) else logits_V / temperature


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature != 0.0 and (sampling.top_k > 0 or sampling.top_p < 1.0)


def _threshold(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """The smallest kept logit, `[..., 1]`."""
    vocabulary = logits_V.shape[-1]
    kept = min(sampling.top_k, vocabulary) if sampling.top_k > 0 else vocabulary
    if sampling.top_p >= 1.0:
        return logits_V.topk(kept, dim=-1).values[..., -1:]
    largest = logits_V.topk(kept, dim=-1).values
    probabilities = torch.softmax(largest, dim=-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= sampling.top_p
    outside[..., 0] = False
    return largest.masked_fill(outside, torch.inf).amin(-1, keepdim=True)


def _work_space(logits_V: Tensor, shape: tuple[int, ...]) -> Tensor:
    return logits_V.new_empty(shape, dtype=at_least_float32(logits_V.new_empty(0)).dtype)


def _chunks(logits_V: Tensor, temperature: float, rows: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of each chunk: its place among the positions, its scaled logits, and room for as many numbers."""
    room_CV: Tensor | None = None
    begin = 0
    for matrix_NV in _matrices(logits_V):
        for chunk_CV in torch.split(matrix_NV, rows):
            if room_CV is None:
                room_CV = _work_space(logits_V, (min(rows, len(matrix_NV)), logits_V.shape[-1]))
            yield (
                slice(begin, begin + len(chunk_CV)),
                _scaled(chunk_CV, temperature),
                room_CV[: len(chunk_CV)],
            )
            begin += len(chunk_CV)


def _matrices(logits_V: Tensor) -> list[Tensor]:
    """Views `[N, V]` that hold all positions in order, whatever the layout."""
    if logits_V.dim() == 1:
        return [logits_V[None]]
    if logits_V.dim() == 2:
        return [logits_V]
    if logits_V.is_contiguous():
        return [logits_V.flatten(0, -2)]
    return [matrix for part in logits_V.unbind() for matrix in _matrices(part)]
