"""Which part of which tensor a rank of a layout holds: plain arithmetic, before there are process groups.

Parts are boxes of whole tensors as Megatron would have them on one rank; gate and up stand along an axis of
their own, and padding of the vocabulary is no part of any tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rlinf_backend_megatron.architecture import Architecture
from rlinf_backend_megatron.layout import Layout
from rlinf_backend_megatron.mapping import Form, Piece, head_of_tied, pieces

Numbers = tuple[int, ...]
LAYERS = "decoder.layers."
EXPERTS = "mlp.experts.local_experts."
OUTSIDE = (
    "embedding.",
    "decoder.final_layernorm.",
    "output_layer.",
    "value_head.",
)  # as Megatron orders them
PARAMETER, BUCKET = 64, 128  # entries that Megatron's optimizer aligns parameters and buckets to


@dataclass(frozen=True)
class Place:
    """Of a rank in a layout. Megatron counts tensor-parallel ranks first, then context, data, and stages."""

    rank: int
    layout: Layout

    @property
    def tensor(self) -> int:
        """Among those that share matrices."""
        return self.rank % self.layout.tensor

    @property
    def stage(self) -> int:
        """Of the pipeline."""
        return self.rank // (self.layout.tensor * self._alike)

    @property
    def expert(self) -> int:
        """Among those that share experts."""
        return self.rank // self._split % self.layout.expert

    def owner(self, *, experts: bool) -> tuple[int, int]:
        """Which of how many this is that share the optimizer's state of the same parameters."""
        if not experts:
            return self.rank // self.layout.tensor % self._alike, self._alike
        apart = self._split * self.layout.expert
        owners = self.layout.tensor * self._alike // apart
        return self.rank // apart % owners, owners

    @property
    def _alike(self) -> int:
        """Ranks of a stage that have the same part of its matrices."""
        return self.layout.context * self.layout.data

    @property
    def _split(self) -> int:
        """Ranks that share one expert."""
        return self.layout.tensor if self.layout.expert == 1 else 1


class Box(NamedTuple):
    """Entries of a parameter that are a box of the whole tensor; they begin at `start` of the parameter."""

    start: int
    offsets: Numbers
    sizes: Numbers
    inner: Numbers  # sizes with padding that no whole tensor has


@dataclass(frozen=True)
class Part:
    """One parameter of a rank. `sizes` of it, with padding, lie at `offsets` of a whole of `shape`."""

    local: str  # Megatron's name on this rank
    name: str  # of the whole, the same on all ranks
    shape: Numbers
    offsets: Numbers
    sizes: Numbers
    dtype: torch.dtype
    trained: bool
    expert: bool = False
    own_bucket: bool = False  # the embedding of two stages
    again: bool = False  # which the first stage has too

    @property
    def entries(self) -> int:
        """Padding included."""
        return math.prod(self.sizes)

    def boxes(self, begin: int, end: int) -> Iterator[Box]:
        """Entries from `begin` to `end` of the flat parameter, without padding."""
        for start, offsets, sizes in flat_boxes(self.sizes, begin, end):
            places = tuple(a + b for a, b in zip(offsets, self.offsets, strict=True))
            real = tuple(min(n, most - a) for a, n, most in zip(places, sizes, self.shape, strict=True))
            if all(size > 0 for size in real):
                yield Box(start, places, real, sizes)


@dataclass(frozen=True)
class Spread:
    """A model over ranks: `order` has the names of a layer's parameters as Megatron orders them, `{x}` in
    place of an expert's number; `extra` are pieces beside the architecture's own, which alone are trained
    where `adapted`."""

    model: Architecture
    forms: Mapping[str, Form]
    extra: tuple[Piece, ...]
    order: tuple[str, ...]
    adapted: bool
    distributed: bool  # the optimizer's state is shared by data-parallel ranks

    def parts(self, place: Place) -> list[Part]:
        """Of a rank, in Megatron's order. Raises `KeyError` for a parameter that no piece is mapped to."""
        named = dict(self._named(place))
        return [self._part(name, *named[name], place) for name in self._names(named, place)]

    def ranges(self, parts: Sequence[Part], place: Place) -> dict[str, tuple[int, int]]:
        """Of which entries of trained parameters a rank has the optimizer's state, by local name."""
        trained = [part for part in parts if part.trained]
        if not self.distributed:
            return {part.local: (0, part.entries) for part in trained}
        buffers: dict[tuple[bool, torch.dtype], list[Part]] = {}
        for part in trained:
            buffers.setdefault((part.expert, part.dtype), []).append(part)
        found: dict[str, tuple[int, int]] = {}
        for (experts, _), held in buffers.items():
            found |= shares(held, *place.owner(experts=experts))
        return found

    def _named(self, place: Place) -> Iterator[tuple[str, tuple[Piece, int]]]:
        """Candidates of local names, with pieces and numbers of experts."""
        model, layout = self.model, place.layout
        count = model.layers // layout.pipeline
        found = [*pieces(model), *self.extra]
        if model.tied and layout.pipeline > 1:
            found.append(head_of_tied(model))
        experts = model.experts.count // layout.expert if model.experts else 0
        for piece in found:
            if piece.layer is None:
                if place.stage == (layout.pipeline - 1 if piece.last else 0):
                    yield from ((name, (piece, 0)) for name in piece.megatron)
            elif place.stage == piece.layer // count:
                prefix = f"{LAYERS}{piece.layer % count}."
                for name in piece.megatron:
                    for x in range(experts if piece.split == "experts" else 1):
                        yield prefix + name.format(x=x), (piece, place.expert * experts + x)

    def _names(self, named: Mapping[str, object], place: Place) -> Iterator[str]:
        outside = [name for name in named if not name.startswith(LAYERS)]
        experts = self.model.experts.count // place.layout.expert if self.model.experts else 0
        yield from (name for name in outside if name.startswith(OUTSIDE[0]))
        for layer in range(self.model.layers // place.layout.pipeline):
            yield from (f"{LAYERS}{layer}.{name}" for name in _expanded(self.order, experts))
        for prefix in OUTSIDE[1:]:
            yield from (name for name in outside if name.startswith(prefix))

    def _part(self, local: str, piece: Piece, expert: int, place: Place) -> Part:
        forms = [self.forms[name] for name in piece.hf]
        whole, axis = self._whole(piece, forms)
        sizes, offsets = list(whole), [0] * len(whole)
        if axis is not None:
            padded = self.model.padded_vocabulary(place.layout.tensor) if piece.vocabulary else whole[axis]
            sizes[axis] = padded // place.layout.tensor
            offsets[axis] = sizes[axis] * place.tensor
        shared = piece.vocabulary and self.model.tied and place.layout.pipeline > 1
        return Part(
            local,
            self._name(piece, expert),
            whole,
            tuple(offsets),
            tuple(sizes),
            forms[0].dtype,
            trained=piece.extra or not self.adapted,
            expert=piece.split == "experts" and place.layout.expert > 1,
            own_bucket=shared,
            again=shared and place.stage > 0,
        )

    def _whole(self, piece: Piece, forms: Sequence[Form]) -> tuple[Numbers, int | None]:
        """The shape of a whole tensor, and along which axis ranks share it."""
        first, *rest = forms[0].shape
        if piece.split == "experts":
            return tuple(rest), None
        if piece.split == "halves":
            return (2, first, *rest), 1
        if piece.qkv:
            return (sum(form.shape[0] for form in forms), *rest), 0
        return (first, *rest), {"none": None, "rows": 0, "columns": 1}[piece.split]

    def _name(self, piece: Piece, expert: int) -> str:
        if piece.vocabulary and self.model.tied:
            return pieces(self.model)[0].megatron[0]
        prefix = "" if piece.layer is None else f"{LAYERS}{piece.layer}."
        return prefix + piece.megatron[0].format(x=expert)


def shares(parts: Sequence[Part], owner: int, owners: int) -> dict[str, tuple[int, int]]:
    """The entries of each parameter that one of the ranks has which share a flat buffer of all of them, as
    Megatron's distributed optimizer lays it out: the last parameter first, aligned, in a bucket or more of
    which every rank has an equal share. Parameters that a rank has nothing of are left out."""
    buckets: list[tuple[int, list[tuple[Part, int]]]] = []  # where it begins, what it holds from where on
    begin, at = 0, 0
    held: list[tuple[Part, int]] = []
    ends: list[int] = []

    def close(end: int) -> int:
        nonlocal begin, held
        divisor = math.lcm(owners, BUCKET)
        ends.append(-(-end // divisor) * divisor)
        buckets.append((begin, held))
        begin, held = ends[-1], []
        return begin

    for part in reversed(parts):
        at = -(-at // PARAMETER) * PARAMETER
        if part.own_bucket and held:
            at = close(at)
        held.append((part, at))
        at += part.entries
        if part.own_bucket:
            at = close(at)
    if held:
        close(at)
    found: dict[str, tuple[int, int]] = {}
    for (start, inside), end in zip(buckets, ends, strict=True):
        share = (end - start) // owners
        low, high = start + owner * share, start + (owner + 1) * share
        for part, place in inside:
            first, last = max(low, place) - place, min(high, place + part.entries) - place
            if first < last:
                found[part.local] = (first, last)
    return found


def flat_boxes(sizes: Numbers, begin: int, end: int) -> Iterator[tuple[int, Numbers, Numbers]]:
    """Entries from `begin` to `end` of a contiguous tensor as boxes: where each begins, its offsets and its
    sizes. Whole rows are one box; what is left of the first and the last row are boxes of these rows."""
    if begin >= end:
        return
    if len(sizes) <= 1:
        yield begin, (begin,) * len(sizes), (end - begin,) * len(sizes)
        return
    inner = math.prod(sizes[1:])
    first, last = -(-begin // inner), end // inner  # whole rows
    if begin < first * inner:
        row = begin // inner
        for start, offsets, size in flat_boxes(sizes[1:], begin - row * inner, min(end - row * inner, inner)):
            yield start + row * inner, (row, *offsets), (1, *size)
        if end <= first * inner:
            return
    if first < last:
        yield first * inner, (first, *(0 for _ in sizes[1:])), (last - first, *sizes[1:])
    if last * inner < end:
        for start, offsets, size in flat_boxes(sizes[1:], 0, end - last * inner):
            yield start + last * inner, (last, *offsets), (1, *size)


def layer_order(names: Sequence[str]) -> tuple[str, ...]:
    """The names within a layer, from those of a network's parameters; those of an expert once."""
    prefix = f"{LAYERS}0."
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(prefix):
            within, inside, after = name.removeprefix(prefix).partition(EXPERTS)
            expert = after.partition(".")[2]
            found[f"{within}{inside}{{x}}.{expert}" if inside else within] = None
    return tuple(found)


def _expanded(order: Sequence[str], experts: int) -> Iterator[str]:
    own = [name for name in order if "{x}" in name]
    for name in order:
        if "{x}" not in name:
            yield name
        elif name == own[0]:
            for x in range(experts):
                yield from (each.format(x=x) for each in own)
