"""What the policy says of collated rows: one definition for rollout checks, reference and trainer.

Axes: B rows, S prompt and response positions, T response positions, N response positions of all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.api import PolicyOutputs
from rlinf_core.errors import ModelError
from rlinf_core.rl.logprobs import logprobs_under
from rlinf_core.types import Experience, Sample, Sampling
from rlinf_model_hf_lm.architecture import causal_lm, plain_head
from rlinf_model_hf_lm.forward import packed_call, packed_rows, response_hidden
from rlinf_model_hf_lm.head import fused_logprobs
from rlinf_model_hf_lm.layout import Layout
from rlinf_model_hf_lm.value import values

Want = Collection[str]


def collate(rows: Sequence[Experience], width: int | None, pad_id: int) -> dict[str, Tensor]:
    """Right-padded ids with the lengths that masks come from, and that packing leaves padding out by. It sits
    to the right of every real token, so that causal attention never sees it."""
    samples = [row for row in rows if isinstance(row, Sample)]
    if len(samples) != len(rows) or not rows:
        raise ModelError(f"hf_lm collates text samples, one or more; it was given {len(rows)} rows")
    longest = max(len(row.response_ids) for row in samples)
    width = longest if width is None else width
    if width < longest:
        raise ModelError(f"hf_lm: width {width} is less than the longest response, {longest} tokens")
    firsts: dict[bytes, int] = {}
    copies = [firsts.setdefault(row.prompt.token_ids.tobytes(), index) for index, row in enumerate(samples)]
    sequences = [np.concatenate([row.prompt.token_ids, row.response_ids]) for row in samples]
    ids_BS = np.full((len(rows), max(len(ids) for ids in sequences)), pad_id, np.int64)
    for row, ids in zip(ids_BS, sequences, strict=True):
        row[: len(ids)] = ids
    return {
        "input_ids": torch.from_numpy(ids_BS),
        "prompt_lengths": torch.tensor([len(row.prompt.token_ids) for row in samples]),
        "response_lengths": torch.tensor([len(row.response_ids) for row in samples]),
        "prompt_copies": torch.tensor(copies),  # the first row with the same prompt
        "width": torch.tensor(width),
    }


def policy_outputs(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    want: Want,
    sampling: Sampling,
    eos_ids: Collection[int],
    packed: bool = True,
) -> PolicyOutputs:
    """`[B, T]` log-probabilities (and entropies) under the sampling transform, and values of the states
    before the tokens; 0 past a row's end. Values alone need no logits."""
    mask_BT, source_BT = _positions(inputs)
    weight_VH = plain_head(module)
    judged = "logprobs" in want or "entropy" in want
    logprobs_N, entropy_N = torch.zeros(int(mask_BT.sum()), device=mask_BT.device), None
    if judged and (weight_VH is None or sampling.min_new_tokens):
        rows = packed_rows(module, inputs, mask_BT) if packed else None
        logits_NV, hidden_NH = (
            _padded_logits(module, inputs, mask_BT, source_BT, "values" in want)
            if rows is None
            else _packed_logits(module, inputs, rows, "values" in want)
        )
        _forbid_end(logits_NV, mask_BT, sampling, eos_ids)
        ids_N = _tokens(inputs, mask_BT, source_BT)
        logprobs_N, entropy_N = logprobs_under(logits_NV, ids_N, sampling, "entropy" in want)
    else:
        hidden_NH = response_hidden(module, inputs, mask_BT, source_BT, packed=packed)
        if judged and weight_VH is not None:
            ids_N = _tokens(inputs, mask_BT, source_BT)
            logprobs_N, entropy_N = fused_logprobs(hidden_NH, weight_VH, ids_N, sampling, "entropy" in want)
    return PolicyOutputs(
        logprobs_BT=_spread(logprobs_N, mask_BT),
        entropy_BT=None if entropy_N is None else _spread(entropy_N, mask_BT),
        values_BT=_spread(values(module, hidden_NH), mask_BT) if "values" in want else None,
    )


def _positions(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The response mask `[B, T]`, and the sequence position that predicts each response token."""
    steps_T = torch.arange(int(inputs["width"]), device=inputs["input_ids"].device)
    mask_BT = steps_T < inputs["response_lengths"][:, None]
    return mask_BT, steps_T + inputs["prompt_lengths"][:, None] - 1


def _tokens(inputs: Mapping[str, Tensor], mask_BT: Tensor, source_BT: Tensor) -> Tensor:
    """The response tokens `[N]`."""
    ids_BS = inputs["input_ids"]
    return ids_BS.gather(1, (source_BT + 1).clamp_max(ids_BS.shape[1] - 1))[mask_BT]


def _packed_logits(
    module: nn.Module, inputs: Mapping[str, Tensor], rows: Layout, want_hidden: bool
) -> tuple[Tensor, Tensor]:
    """As `_padded_logits`, of rows without padding."""
    with _watched(module, want_hidden) as seen:
        output: Any = module(**packed_call(inputs, rows), logits_to_keep=rows.outputs)
    logits_NV: Tensor = output.logits[0]
    return logits_NV, seen[0][0].index_select(0, rows.outputs) if seen else logits_NV.new_empty(0)


def _padded_logits(
    module: nn.Module, inputs: Mapping[str, Tensor], mask_BT: Tensor, source_BT: Tensor, want_hidden: bool
) -> tuple[Tensor, Tensor]:
    """Logits of the response positions by the module's own forward, whatever it does to them, and the
    hidden states that they come from (none where these are not wanted)."""
    ids_BS = inputs["input_ids"][:, :-1]
    first = int(inputs["prompt_lengths"].min()) - 1
    kept = ids_BS.shape[1] - first
    row_BT = torch.arange(len(ids_BS), device=ids_BS.device)[:, None].expand_as(source_BT)
    row_N, source_N = row_BT[mask_BT], source_BT[mask_BT]
    with _watched(module, want_hidden) as seen:
        output: Any = module(input_ids=ids_BS, use_cache=False, logits_to_keep=kept)
    logits_BKV: Tensor = output.logits
    logits_NV = logits_BKV[row_N, source_N - first - (kept - logits_BKV.shape[1])]
    return logits_NV, seen[0][row_N, source_N] if seen else logits_NV.new_empty(0)


@contextmanager
def _watched(module: nn.Module, wanted: bool) -> Iterator[list[Tensor]]:
    """The last hidden states `[B, S, H]` of a forward of the module."""
    seen: list[Tensor] = []
    if not wanted:
        yield seen
        return
    trunk = causal_lm(module).base_model
    with trunk.register_forward_hook(lambda _part, _args, output: seen.append(output.last_hidden_state)):
        yield seen


def _forbid_end(logits_NV: Tensor, mask_BT: Tensor, sampling: Sampling, eos_ids: Collection[int]) -> None:
    """End-of-sequence tokens had probability 0 before `min_new_tokens`."""
    if sampling.min_new_tokens:
        early_N = mask_BT.nonzero()[:, 1] < sampling.min_new_tokens
        for end in eos_ids:
            logits_NV[:, end].masked_fill_(early_N, -torch.inf)


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
