"""Log-probabilities and entropies from hidden states where each rank has a part of the vocabulary.

Logits of a chunk of positions exist only while it is worked on, of this rank's tokens alone, and are made
again in the backward pass. What is exchanged is one number a position.

Axes: N response positions, H hidden size, V this rank's tokens, C positions of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf_core.rl.logprobs import apply_sampling_transform
from rlinf_core.types import Sampling

CHUNK_ELEMENTS = 1 << 24  # logits alive at once (64 MiB in float32)


@dataclass(frozen=True)
class Vocabulary:
    """This rank's part: `size` rows from token `start` on, of which those from `known` on are padding."""

    start: int
    size: int
    known: int  # tokens of the whole vocabulary
    group: Any = None  # of the ranks that have the other parts; None = there are none

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over the parts, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Largest over the parts, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor


@dataclass(frozen=True)
class Choice:
    """The tokens that were chosen, and the distribution that they were drawn from."""

    ids_N: Tensor
    sampling: Sampling
    early_N: Tensor | None = None  # True where no `forbidden` token could be drawn
    forbidden: tuple[int, ...] = ()

    def part(self, where: slice) -> Choice:
        """Some positions."""
        early = None if self.early_N is None else self.early_N[where]
        return Choice(self.ids_N[where], self.sampling, early, self.forbidden)


def parallel_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, vocabulary: Vocabulary, choice: Choice
) -> tuple[Tensor, Tensor]:
    """Float32 log-probabilities `[N]` and entropies `[N]`. The gradient of `hidden_NH` is this rank's part of
    it, to be summed over the ranks."""
    apply: Any = _ParallelHead.apply  # torch does not annotate it
    logprobs_N, entropy_N = apply(hidden_NH, weight_VH, vocabulary, choice)
    return logprobs_N, entropy_N


class _ParallelHead(torch.autograd.Function):
    """Keeps two numbers a position for the backward pass: the logarithm of the sum, and the entropy."""

    @staticmethod
    def forward(  # Any: autograd's context object
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, vocabulary: Vocabulary, choice: Choice
    ) -> tuple[Tensor, Tensor]:
        ctx.vocabulary, ctx.choice = vocabulary, choice
        rows = len(hidden_NH)
        logprobs_N = hidden_NH.new_empty(rows, dtype=torch.float32)
        entropy_N, total_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for where in _chunks(rows, weight_VH):
            part = choice.part(where)
            logits_CV = _logits(hidden_NH[where], weight_VH, vocabulary, part)
            total_C = _log_total(logits_CV, vocabulary)
            chosen_C = _chosen(logits_CV, part.ids_N, vocabulary)
            weighted_CV = (logits_CV - total_C[:, None]).exp_().mul_(logits_CV.clamp_min(-1e30))
            chosen_C, expected_C = vocabulary.sum_(torch.stack([chosen_C, weighted_CV.sum(-1)]))
            logprobs_N[where], entropy_N[where] = chosen_C - total_C, total_C - expected_C
            total_N[where] = total_C
        ctx.save_for_backward(hidden_NH, weight_VH, total_N, entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, total_N, entropy_N = ctx.saved_tensors
        logprobs_grad_N, entropy_grad_N = grads
        hidden_grad = torch.empty_like(hidden_NH)
        weight_grad = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        for where in _chunks(len(hidden_NH), weight_VH):
            part = ctx.choice.part(where)
            logits_CV = _logits(hidden_NH[where], weight_VH, ctx.vocabulary, part)
            logs_CV = logits_CV.sub_(total_N[where, None])
            weights_CV = logs_CV.clamp_min(-1e30).add_(entropy_N[where, None])
            weights_CV.mul_(-entropy_grad_N[where, None]).sub_(logprobs_grad_N[where, None])
            grad_CV = logs_CV.exp_().mul_(weights_CV)
            _add_chosen(grad_CV, part.ids_N, logprobs_grad_N[where], ctx.vocabulary)
            if part.sampling.temperature not in (0.0, 1.0):
                grad_CV.div_(part.sampling.temperature)
            grad_CV = grad_CV.to(weight_VH.dtype)
            hidden_grad[where] = grad_CV @ weight_VH
            if weight_grad is not None:
                weight_grad.addmm_(grad_CV.t(), hidden_NH[where].to(weight_VH.dtype))
        return hidden_grad, weight_grad, None, None


def _chunks(rows: int, weight_VH: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // len(weight_VH))
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _logits(hidden_CH: Tensor, weight_VH: Tensor, vocabulary: Vocabulary, choice: Choice) -> Tensor:
    """This rank's logits in float32 under the sampling transform; tokens that cannot be drawn are -inf."""
    logits_CV = (hidden_CH.to(weight_VH.dtype) @ weight_VH.t()).float()
    padding = vocabulary.start + vocabulary.size - vocabulary.known
    if padding > 0:
        logits_CV[:, vocabulary.size - padding :] = -torch.inf
    if choice.early_N is not None:
        for token in choice.forbidden:
            if 0 <= token - vocabulary.start < vocabulary.size:
                logits_CV[:, token - vocabulary.start].masked_fill_(choice.early_N, -torch.inf)
    sampling = choice.sampling
    if sampling.temperature not in (0.0, 1.0):
        logits_CV.div_(sampling.temperature)
    if sampling.temperature and (sampling.top_k > 0 or sampling.top_p < 1.0):
        logits_CV.masked_fill_(_cut(logits_CV, vocabulary, choice), -torch.inf)
    return logits_CV


def _cut(scaled_CV: Tensor, vocabulary: Vocabulary, choice: Choice) -> Tensor:
    """Which of this rank's tokens top-k and top-p cut. Only here logits of one chunk are gathered."""
    whole = scaled_CV
    if vocabulary.group is not None:
        parts = [torch.empty_like(scaled_CV) for _ in range(dist.get_world_size(vocabulary.group))]
        dist.all_gather(parts, scaled_CV.contiguous(), group=vocabulary.group)
        whole = torch.cat(parts, dim=-1)
    once = Sampling(top_p=choice.sampling.top_p, top_k=choice.sampling.top_k)
    kept = apply_sampling_transform(whole, once, choice.ids_N)
    mine = slice(vocabulary.start, vocabulary.start + vocabulary.size)
    return kept[:, mine].isneginf()


def _log_total(logits_CV: Tensor, vocabulary: Vocabulary) -> Tensor:
    largest_C = vocabulary.max_(logits_CV.amax(-1))
    return largest_C + vocabulary.sum_((logits_CV - largest_C[:, None]).exp_().sum(-1)).log()


def _chosen(logits_CV: Tensor, ids_C: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The chosen tokens' logits where they are this rank's, else 0."""
    local_C = ids_C - vocabulary.start
    mine_C = (local_C >= 0) & (local_C < vocabulary.size)
    found_C = logits_CV.gather(1, local_C.clamp(0, vocabulary.size - 1)[:, None]).squeeze(1)
    return torch.where(mine_C, found_C, 0.0)


def _add_chosen(grad_CV: Tensor, ids_C: Tensor, amounts_C: Tensor, vocabulary: Vocabulary) -> None:
    local_C = ids_C - vocabulary.start
    mine_C = (local_C >= 0) & (local_C < vocabulary.size)
    places_C1 = local_C.clamp(0, vocabulary.size - 1)[:, None]
    grad_CV.scatter_add_(1, places_C1, torch.where(mine_C, amounts_C, 0.0)[:, None])
