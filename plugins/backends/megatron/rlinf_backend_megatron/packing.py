"""Rows of all lengths as one line of tokens, and attention that keeps them apart.

Megatron computes such a line with positions that start anew in each row ("thd"); TransformerEngine's
attention reads the bounds of the rows, and `attend` does the same by torch's fused kernels.

Axes: B rows, S positions of a padded row, P packed positions, N heads, G key and value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.nn import functional

WASTE = 128**2  # pairs of queries and keys that may be computed in vain to save a call


@dataclass(frozen=True)
class Group:
    """Rows of similar length, which attention computes at once: from packed position `begin` to `end`."""

    begin: int
    end: int
    rows: int
    width: int
    padded: Tensor | None = None  # [rows * width] places among the group's own positions; None = all as long
    real: Tensor | None = None  # places in [rows * width] of the group's positions


@dataclass
class PackedRows(PackedSeqParams):  # type: ignore[misc]  # Megatron is not typed
    """What Megatron's layers are told of a line of rows."""

    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Line:
    """Where the tokens of rows lie in one line, longest rows first, and padding last."""

    source_P: Tensor  # places in the flat [B, S]
    begin_B: Tensor
    rows: PackedRows


def packed_line(lengths_B: Sequence[int], stride: int, multiple: int, device: torch.device) -> Line:
    """The line of rows that have so many tokens of `stride` places, padded to a multiple."""
    order = sorted(range(len(lengths_B)), key=lambda row: -lengths_B[row])
    counts = [lengths_B[row] for row in order]
    padding = -sum(counts) % multiple
    begins = [0] * len(order)
    place, source = 0, []
    for row, count in zip(order, counts, strict=True):
        begins[row] = place
        source.append(torch.arange(count) + row * stride)
        place += count
    source.append(torch.zeros(padding, dtype=torch.int64))
    counts += [padding] if padding else []
    bounds = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    rows = PackedRows(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=max(counts),
        max_seqlen_kv=max(counts),
        groups=tuple(_groups(counts, device)),
    )
    return Line(torch.cat(source).to(device), torch.tensor(begins, device=device), rows)


def attend(
    query_PND: Tensor, key_PGD: Tensor, value_PGD: Tensor, rows: PackedRows, scale: float | None
) -> Tensor:
    """`[P, N * D]`: causal attention within each row."""
    found = []
    for group in rows.groups:
        mine = slice(group.begin, group.end)
        found.append(_attend_group(group, (query_PND[mine], key_PGD[mine], value_PGD[mine]), scale))
    return torch.cat(found)


def _attend_group(group: Group, parts: tuple[Tensor, ...], scale: float | None) -> Tensor:
    if group.padded is not None:
        parts = tuple(part.index_select(0, group.padded) for part in parts)
    query, key, value = (part.unflatten(0, (group.rows, group.width)).transpose(1, 2) for part in parts)
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    flat = mixed.transpose(1, 2).flatten(0, 1).flatten(1)
    return flat if group.real is None else flat.index_select(0, group.real)


def _groups(counts: Sequence[int], device: torch.device) -> list[Group]:
    """Rows that stand next to each other, cut where padding would waste more than a call costs."""
    cuts, wasted = [0], 0
    for number, count in enumerate(counts):
        width = counts[cuts[-1]]
        wasted += width**2 - count**2
        if wasted > WASTE:
            cuts.append(number)
            wasted = 0
    found, begin = [], 0
    for first, last in zip(cuts, [*cuts[1:], len(counts)], strict=True):
        lengths = [count for count in counts[first:last] if count]
        if lengths:
            found.append(_group(begin, lengths, device))
            begin = found[-1].end
    return found


def _group(begin: int, lengths: Sequence[int], device: torch.device) -> Group:
    rows, width, total = len(lengths), max(lengths), sum(lengths)
    if rows * width == total:
        return Group(begin, begin + total, rows, width)
    lengths_R = torch.tensor(lengths)
    starts_R = lengths_R.cumsum(0) - lengths_R
    steps_W = torch.arange(width)
    padded_RW = starts_R[:, None] + steps_W.minimum(lengths_R[:, None] - 1)
    real = (steps_W < lengths_R[:, None]).flatten().nonzero()[:, 0]
    return Group(begin, begin + total, rows, width, padded_RW.flatten().to(device), real.to(device))
