"""Everything that a rank holds between steps, as blocks of whole tensors with the memory that they lie in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from rlinf_backend_megatron.body import Body
from rlinf_backend_megatron.layout import Layout
from rlinf_backend_megatron.optimizer import MOMENTS
from rlinf_backend_megatron.spread import Part, Place, Spread
from rlinf_core.api import Block

MODEL, COPY, MARK = "model.", "copy.", "reference."  # the policy, its reference, or a mark of it
MAIN = "main"  # parameters in float32, of those that have fewer bits


@dataclass(frozen=True)
class Holding:
    """One box of a tensor; `kind` and the name of the part make its name. It lies in a `source`, with the
    padding that its `inner` sizes have, from `begin` on."""

    kind: str
    part: Part
    block: Block
    source: Tensor | None
    begin: int
    inner: tuple[int, ...]

    @property
    def tensor(self) -> Tensor:
        """Its entries. There are none where a rank is yet to have it, or while it is off the device."""
        if self.source is None:
            raise RuntimeError(f"{self.block.name} lies nowhere yet")
        flat = self.source.view(-1)[self.begin : self.begin + prod(self.inner)]
        return flat.view(self.inner)[tuple(slice(0, size) for size in self.block.sizes)]


class HeldBoxes(Mapping[Block, Tensor]):
    """Blocks, and where they lie, which is found out when it is asked for: blocks are told while state may be
    off the device."""

    def __init__(self, found: Iterable[Holding]) -> None:
        self._found = {holding.block: holding for holding in found}

    def __getitem__(self, block: Block) -> Tensor:
        return self._found[block].tensor

    def __iter__(self) -> Iterator[Block]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def expected(spread: Spread, layout: Layout, rank: int, *, copied: bool, marked: bool) -> Iterator[Block]:
    """What a rank of a layout will have: with a reference that is a network of its own (`copied`), or with a
    mark of the adapters."""
    place = Place(rank, layout)
    parts = spread.parts(place)
    ranges = spread.ranges(parts, place)
    found: list[Iterator[Holding]] = []
    for part in parts:
        kinds = [MODEL, COPY] if copied else [MODEL]
        kinds += [MARK] if marked and not copied and part.trained else []
        found += [_whole(kind, part, None) for kind in kinds]
        begin, end = ranges.get(part.local, (0, 0))
        states = (*MOMENTS, MAIN) if part.dtype != torch.float32 else MOMENTS
        found += [_state(kind, part, begin, end, None) for kind in states]
    return (holding.block for each in found for holding in each)


def holdings(spread: Spread, body: Body) -> Iterator[Holding]:
    """What this rank has."""
    named = dict(body.network.named_parameters())
    copied = {} if body.reference.copy is None else dict(body.reference.copy.named_parameters())
    sources = {MODEL: named, COPY: copied, MARK: body.reference.held()}
    parts = {part.local: part for part in spread.parts(Place(body.world.rank, body.world.layout))}
    for kind, tensors in sources.items():
        for name, tensor in tensors.items():
            yield from _whole(kind, parts[name], tensor.detach())
    names = {parameter: name for name, parameter in named.items()}
    for kept in body.optimizer.kept():
        part, main = parts[names[kept.parameter]], kept.main.detach()
        states = kept.moments if main.dtype == part.dtype else {**kept.moments, MAIN: main}
        for kind, tensor in states.items():
            yield from _state(kind, part, kept.begin, kept.begin + main.numel(), tensor)


def _whole(kind: str, part: Part, tensor: Tensor | None) -> Iterator[Holding]:
    return _boxes(kind, part.dtype, part, 0, part.entries, tensor)


def _state(kind: str, part: Part, begin: int, end: int, tensor: Tensor | None) -> Iterator[Holding]:
    return _boxes(f"optimizer.{kind}.", torch.float32, part, begin, end, tensor)


def _boxes(
    kind: str, dtype: torch.dtype, part: Part, begin: int, end: int, tensor: Tensor | None
) -> Iterator[Holding]:
    """Of entries of a parameter, which lie in a tensor of these."""
    words = str(dtype).removeprefix("torch.")
    for box in part.boxes(begin, end):
        block = Block(kind + part.name, words, dtype.itemsize, part.shape, box.offsets, box.sizes)
        yield Holding(kind, part, block, tensor, box.start - begin, box.inner)
