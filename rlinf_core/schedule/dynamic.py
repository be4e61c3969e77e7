"""The fastest tree for one chunk size, by dynamic programming over sets of blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.bounds import Bounds
from rlinf_core.schedule.cost import GRAIN
from rlinf_core.schedule.frontier import APART, SHARED, Frontier, Ints, Mask, joined
from rlinf_core.schedule.tree import Cut, Kind, Rules

PAIRS = 1 << 20  # that are looked at at once
SLACK = 1 + 1e-9  # rounding


@dataclass(frozen=True)
class Step:
    """One way to join two sets of blocks."""

    kind: Kind
    first: int
    second: int
    cut: Cut


class Dynamic:
    """Frontiers of all sets of blocks. Trees slower than `limit` are left out where that is certain."""

    def __init__(
        self,
        rules: Rules,
        leaves: Sequence[Frontier],
        kinds: Collection[Kind] = ("time", "space"),
        limit: float = np.inf,
        styles: bool = False,
    ) -> None:
        self.rules = rules
        self.kinds = kinds
        self.limit = limit * SLACK
        self.styles = styles
        cluster = rules.cost.cluster
        self.room = np.array([cluster.count(kind) for kind in cluster.types])
        self.steps: list[Step] = []
        self.frontiers: dict[int, Frontier] = {}
        fronts = {1 << number: self._fitting(front) for number, front in enumerate(leaves)}
        self._bounds = Bounds(rules.blocks, fronts, self.room, self.limit, kinds)
        for mask, front in fronts.items():
            sure = front.take(self._bounds.allow(mask, front.columns, front.use))
            self.frontiers[mask] = self._lean(mask, sure).pruned(self.styles)

    def solve(self, most: int) -> Frontier:
        """The fastest ways for the whole graph, at most so many; empty if nothing fits."""
        whole = self.rules.blocks.all
        for mask in self.rules.blocks.masks:
            if mask.bit_count() > 1:
                self.frontiers[mask] = self._joined(mask, most if mask == whole else 0)
        return self._first(self.frontiers[whole], most)

    def _first(self, found: Frontier, most: int) -> Frontier:
        """The fastest rows, and those of them that can be chosen for their style."""
        if self.styles:
            found = found.take(found.style == (SHARED | APART))
        return found.take(np.argsort(found.times[:, 2], kind="stable")[:most])

    def _fitting(self, front: Frontier) -> Frontier:
        fits = (front.use <= self.room).all(axis=1) & (front.memory.sum(axis=1) <= GRAIN)
        return front.take(fits & (front.times[:, 2] <= self.limit))

    def _lean(self, mask: int, found: Frontier) -> Frontier:
        """Without memory figures that cannot matter any more."""
        if "time" not in self.kinds:
            return replace(found, memory=np.zeros_like(found.memory))
        return replace(found, memory=self._bounds.forget(mask, found.memory))

    def _joined(self, mask: int, most: int) -> Frontier:
        parts = []
        for first, second in self.rules.blocks.cuts(mask):
            cut = self.rules.cut(first, second)
            for kind in self.kinds:
                self.steps.append(Step(kind, first, second, cut))
                for part in self._pairs(mask, len(self.steps) - 1):
                    parts.append(self._first(part, most) if most else part.pruned(self.styles))
        if not parts:
            return self._empty()
        return joined(parts) if most else joined(parts).pruned(self.styles)

    def _pairs(self, mask: int, number: int) -> Iterator[Frontier]:
        step = self.steps[number]
        one, two = self.frontiers[step.first], self.frontiers[step.second]
        if not len(one) or not len(two):
            return
        rows = max(1, PAIRS // len(two))
        for start in range(0, len(one), rows):
            part = self._block(mask, number, start, min(len(one), start + rows))
            if len(part):
                yield self._lean(mask, part)

    def _block(self, mask: int, number: int, start: int, end: int) -> Frontier:
        """Rows `start` to `end` of the first part with all rows of the second."""
        step = self.steps[number]
        one, two = self.frontiers[step.first], self.frontiers[step.second]
        left, right = np.nonzero(self._fit(step, one, two, start, end))
        if not len(left):
            return self._empty()
        left += start
        times = self._times(mask, step, one, two, left, right)
        use = self._use(step, one, two, left, right)
        sure = np.flatnonzero(self._bounds.allow(mask, times, use))
        if not len(sure):
            return self._empty()
        left, right, use = left[sure], right[sure], use[sure]
        columns = np.column_stack([column[sure] for column in times])
        kept, loaded = self._memory(step, one, two, left, right)
        style = one.style[left] | two.style[right]
        if step.kind == "space":
            style |= APART
        else:
            style |= SHARED | np.where((one.use[left] == two.use[right]).all(axis=1), 0, APART)
        made = np.column_stack([np.full(len(left), number), left, right])
        fits = kept + loaded <= GRAIN
        found = Frontier(columns, use, np.column_stack([kept, loaded]), style, made)
        return found if fits.all() else found.take(fits)

    def _fit(self, step: Step, one: Frontier, two: Frontier, start: int, end: int) -> Mask:
        if step.kind == "space":
            fits = np.ones((end - start, len(two)), dtype=bool)
            for place, most in enumerate(self.room):
                fits &= one.use[start:end, place, None] + two.use[:, place][None] <= most
            return fits
        fits = one.times[start:end, 2, None] + two.times[:, 2][None] <= self.limit
        if len(self.room) > 1:
            has, other = one.use[start:end, None] > 0, two.use[None] > 0
            fits &= (has <= other).all(axis=2) | (other <= has).all(axis=2)
        return fits

    def _times(self, mask: int, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints) -> Times:
        first, second = Times(*one.times[left].T), Times(*two.times[right].T)
        return self.rules.seen(mask, self.rules.join(step.kind, step.cut, first, second))

    def _use(self, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints) -> Ints:
        if step.kind == "space":
            return one.use[left] + two.use[right]
        return np.maximum(one.use[left], two.use[right])

    def _memory(self, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints) -> tuple[Ints, Ints]:
        first, second = one.memory[left], two.memory[right]
        loaded = np.maximum(first[:, 1], second[:, 1])
        if step.kind == "time":
            return first[:, 0] + second[:, 0], loaded
        return np.maximum(first[:, 0], second[:, 0]), loaded

    def _empty(self) -> Frontier:
        return self.frontiers[1].take(np.zeros(0, dtype=np.int64))


def chunk_sizes(samples: int, quantum: int, streams: bool, fine: bool) -> list[int]:
    """Sizes of chunks that are tried: all samples (0), then 1/2, 1/4, ... 1/64 (if `fine`, also 1/3, 1/6,
    ... 1/48), in whole quanta."""
    if not streams:
        return [0]
    waves = {2**power for power in range(1, 7)} | ({3 * 2**power for power in range(5)} if fine else set())
    sizes = [-(-samples // (wave * quantum)) * quantum for wave in sorted(waves)]
    return [0, *dict.fromkeys(size for size in sizes if size < samples)]
