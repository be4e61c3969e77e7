"""Log-probabilities, entropies and the sampling transform that rollout and trainer share.

Axes: V vocabulary; `...` any leading axes. Everything is computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.types import Sampling


def gather_logprobs(logits_V: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """`log softmax(logits / temperature)[ids]`, as `logits[ids] / temperature - logsumexp`.

    `logits_V` is `[..., V]`, `ids` `[...]`; no second `[..., V]` tensor is made at temperature 1.
    """
    scaled_V = _scaled(logits_V, temperature)
    chosen = scaled_V.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled_V, dim=-1)


def entropy(logits_V: Tensor) -> Tensor:
    """`H = logsumexp(logits) - sum(softmax(logits) * logits)` in nats; `-inf` logits have weight 0."""
    logits_V = logits_V.float()
    finite_V = logits_V.masked_fill(logits_V == -torch.inf, 0.0)
    expected = (torch.softmax(logits_V, dim=-1) * finite_V).sum(-1)
    return torch.logsumexp(logits_V, dim=-1) - expected


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
    logits_V = logits_V.float()
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
