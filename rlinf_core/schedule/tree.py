"""Plans as trees: one part after the other on the same devices, or both at once on devices of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinf_core.schedule import algebra
from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.blocks import Blocks
from rlinf_core.schedule.choices import Priced
from rlinf_core.schedule.cost import CostModel

Kind = Literal["time", "space"]


@dataclass(frozen=True)
class Split:
    """Two parts: `time` = on the same devices, one after the other; `space` = on devices of their own."""

    kind: Kind
    first: Tree
    second: Tree


Tree = Split | Priced


def leaves(tree: Tree) -> Iterator[Priced]:
    """The options that a tree is made of, in its order."""
    if isinstance(tree, Priced):
        yield tree
    else:
        yield from leaves(tree.first)
        yield from leaves(tree.second)


def mask_of(tree: Tree) -> int:
    """The set of its blocks."""
    return sum(1 << leaf.option.block for leaf in leaves(tree))


@dataclass(frozen=True)
class Cut:
    """What lies between two parts: seconds of samples on their way, of others' work, of weight copies."""

    crossed: bool
    way: float  # in all, where the parts are apart
    beside: float  # where they share devices
    sync_apart: float
    sync_shared: float


class Rules:
    """How parts join into larger ones, for plans whose samples travel in chunks of one size."""

    def __init__(self, blocks: Blocks, cost: CostModel, chunk: int) -> None:
        self.blocks = blocks
        self.cost = cost
        self.chunk = chunk
        samples = blocks.graph.samples
        self.share = chunk / samples if chunk else 1.0
        self.messages = math.ceil(samples / chunk) if chunk else 1
        self._cuts: dict[tuple[int, int], Cut] = {}

    def cut(self, first: int, second: int) -> Cut:
        """What lies between two sets of blocks."""
        if (first, second) not in self._cuts:
            self._cuts[first, second] = self._cut(first, second)
        return self._cuts[first, second]

    def _cut(self, first: int, second: int) -> Cut:
        links = self.blocks.crossing(first, second)
        samples = self.blocks.graph.samples
        others = [sum(self.cost.beside_s(name, samples) for name in link.beside) for link in links]
        sent = [self.cost.transfer_s(link.producer, samples, self.messages) for link in links]
        copied = [
            name
            for source, target, name in self.blocks.syncs
            if (first >> source & 1 and second >> target & 1)
            or (second >> source & 1 and first >> target & 1)
        ]
        return Cut(
            bool(links),
            max((sum(pair) for pair in zip(sent, others, strict=True)), default=0.0),
            max(others, default=0.0),
            sum(self.cost.sync_s(name, together=False) for name in copied),
            sum(self.cost.sync_s(name, together=True) for name in copied),
        )

    def join(self, kind: Kind, cut: Cut, first: Times, second: Times) -> Times:
        """Times of two parts as one."""
        if kind == "time":
            return algebra.delayed(algebra.after(first, second, cut.beside), cut.sync_shared)
        if cut.crossed:
            joined = algebra.along(first, second, cut.way, self.share)
        else:
            joined = algebra.beside(first, second)
        return algebra.delayed(joined, cut.sync_apart)

    def seen(self, mask: int, times: Times) -> Times:
        """Times without what does not show outside a set of blocks."""
        return algebra.seen(times, self.blocks.takes(mask), self.blocks.gives(mask))

    def times(self, tree: Tree) -> Times:
        """The four numbers of a tree."""
        mask = mask_of(tree)
        if isinstance(tree, Priced):
            waits = bool(self.blocks.blocks[tree.option.block].late)
            return self.seen(mask, tree.times(waits, self.share))
        cut = self.cut(mask_of(tree.first), mask_of(tree.second))
        return self.seen(mask, self.join(tree.kind, cut, self.times(tree.first), self.times(tree.second)))

    def seconds(self, tree: Tree) -> float:
        """How long a step takes."""
        return float(self.times(tree).c)

    def devices(self, tree: Tree) -> dict[str, int]:
        """Number of devices used, by type."""
        if isinstance(tree, Priced):
            used: dict[str, int] = {}
            for seat in tree.option.seats:
                used[seat.device_type] = used.get(seat.device_type, 0) + seat.devices
            return used
        one, two = self.devices(tree.first), self.devices(tree.second)
        join = max if tree.kind == "time" else np.add
        return {kind: int(join(one.get(kind, 0), two.get(kind, 0))) for kind in {**one, **two}}

    def memory(self, tree: Tree) -> tuple[int, int]:
        """Memory kept always, and most memory more while one works, on the fullest device."""
        if isinstance(tree, Priced):
            return tree.kept, tree.loaded
        one, two = self.memory(tree.first), self.memory(tree.second)
        kept = one[0] + two[0] if tree.kind == "time" else max(one[0], two[0])
        return kept, max(one[1], two[1])
