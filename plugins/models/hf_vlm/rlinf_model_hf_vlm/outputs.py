"""What the policy says of collated rows: one definition for rollout checks, reference and trainer.

Axes: B rows, T response positions, N response positions of all rows, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from rlinf_core.api import PolicyOutputs
from rlinf_core.rl.logprobs import logprobs_under
from rlinf_core.types import Sampling
from rlinf_model_hf_vlm.architecture import logits
from rlinf_model_hf_vlm.forward import response_hidden
from rlinf_model_hf_vlm.value import values


def policy_outputs(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    want: Collection[str],
    sampling: Sampling,
    eos_ids: Collection[int],
) -> PolicyOutputs:
    """`[B, T]` log-probabilities (and entropies) under the sampling transform, and values of the states
    before the tokens; 0 past a row's end."""
    steps_T = torch.arange(int(inputs["width"]), device=inputs["response_ids"].device)
    mask_BT = steps_T < inputs["response_lengths"][:, None]
    hidden_NE = response_hidden(module, inputs, mask_BT)
    logprobs_N, entropy_N = torch.zeros(len(hidden_NE), device=mask_BT.device), None
    if "logprobs" in want or "entropy" in want:
        ids_N = inputs["response_ids"][mask_BT[:, : inputs["response_ids"].shape[1]]]
        logits_NV = logits(module, hidden_NE)
        if sampling.min_new_tokens:
            logits_NV = _without_end(logits_NV, mask_BT, sampling, eos_ids)
        logprobs_N, entropy_N = logprobs_under(logits_NV, ids_N, sampling, "entropy" in want)
    return PolicyOutputs(
        logprobs_BT=_spread(logprobs_N, mask_BT),
        entropy_BT=None if entropy_N is None else _spread(entropy_N, mask_BT),
        values_BT=_spread(values(module, hidden_NE), mask_BT) if "values" in want else None,
    )


def _without_end(logits_NV: Tensor, mask_BT: Tensor, sampling: Sampling, eos_ids: Collection[int]) -> Tensor:
    """End-of-sequence tokens had probability 0 before `min_new_tokens`."""
    early_N1 = (mask_BT.nonzero()[:, 1] < sampling.min_new_tokens)[:, None]
    ends_V = torch.zeros(logits_NV.shape[1], dtype=torch.bool, device=logits_NV.device)
    ends_V[list(eos_ids)] = True
    return logits_NV.masked_fill(early_N1 & ends_V, -torch.inf)


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
