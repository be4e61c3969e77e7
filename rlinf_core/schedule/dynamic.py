"""The fastest tree for one chunk size, by dynamic programming over sets of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.cost import GRAIN
from rlinf_core.schedule.frontier import APART, SHARED, Floats, Frontier, Ints, Mask, joined
from rlinf_core.schedule.options import Priced
from rlinf_core.schedule.tree import Cut, Kind, Rules, Split, Tree

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
        options: dict[int, list[Priced]],
        kinds: Collection[Kind] = ("time", "space"),
        limit: float = np.inf,
        styles: bool = False,
    ) -> None:
        self.rules = rules
        self.options = options
        self.kinds = kinds
        self.limit = limit * SLACK
        self.styles = styles
        cluster = rules.cost.cluster
        self.types = cluster.types
        self.room = np.array([cluster.count(kind) for kind in cluster.types])
        self.steps: list[Step] = []
        self.frontiers: dict[int, Frontier] = {}
        self._leaf_times: dict[int, Floats] = {}

    def solve(self) -> Frontier:
        """The frontier of the whole graph; empty if nothing fits."""
        blocks = self.rules.blocks
        for number in range(len(blocks.blocks)):
            self.frontiers[1 << number] = self._leaves(number)
        self._bounds = Bounds(self)
        for mask in blocks.masks:
            if mask.bit_count() > 1:
                self.frontiers[mask] = self._joined(mask)
        return self.frontiers[blocks.all]

    def tree(self, mask: int, row: int) -> Tree:
        """How a row was made."""
        cut, one, two = (int(number) for number in self.frontiers[mask].made[row])
        if cut < 0:
            return self.options[mask.bit_length() - 1][one]
        step = self.steps[cut]
        return Split(step.kind, self.tree(step.first, one), self.tree(step.second, two))

    def _leaves(self, number: int) -> Frontier:
        mask, found = 1 << number, self.options[number]
        waits = bool(self.rules.blocks.blocks[number].late)
        rows = [self.rules.seen(mask, option.times(waits, self.rules.share)) for option in found]
        use = np.zeros((len(found), len(self.types)), dtype=np.int64)
        for place, priced in enumerate(found):
            for seat in priced.option.seats:
                use[place, self.types.index(seat.device_type)] += seat.devices
        frontier = Frontier(
            np.array(rows, dtype=np.float64).reshape(len(found), 4),
            use,
            np.array([(one.kept, one.loaded) for one in found], dtype=np.int64).reshape(len(found), 2),
            np.array([APART if len(one.option.seats) > 1 else 0 for one in found], dtype=np.int64),
            np.array([(-1, place, 0) for place in range(len(found))], dtype=np.int64).reshape(-1, 3),
        )
        fits = (frontier.use <= self.room).all(axis=1) & (frontier.memory.sum(axis=1) <= GRAIN)
        return frontier.take(fits & (frontier.times[:, 2] <= self.limit)).pruned(self.styles)

    def _joined(self, mask: int) -> Frontier:
        parts = []
        for first, second in self.rules.blocks.cuts(mask):
            cut = self.rules.cut(first, second)
            for kind in self.kinds:
                self.steps.append(Step(kind, first, second, cut))
                parts += list(self._pairs(mask, len(self.steps) - 1))
        if not parts:
            return self._empty()
        return joined(parts).pruned(self.styles)

    def _pairs(self, mask: int, number: int) -> Iterator[Frontier]:
        step = self.steps[number]
        one, two = self.frontiers[step.first], self.frontiers[step.second]
        if not len(one) or not len(two):
            return
        rows = max(1, PAIRS // len(two))
        for start in range(0, len(one), rows):
            part = self._block(mask, number, start, min(len(one), start + rows))
            if len(part):
                yield part.pruned(self.styles)

    def _block(self, mask: int, number: int, start: int, end: int) -> Frontier:
        """Rows `start` to `end` of the first part with all rows of the second."""
        step = self.steps[number]
        one, two = self.frontiers[step.first], self.frontiers[step.second]
        left, right = np.nonzero(self._fit(step, one, two, start, end))
        left += start
        times = self._times(mask, step, one, two, left, right)
        use = self._use(step, one, two, left, right)
        sure = self._bounds.allow(mask, times.c, use)
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
        if len(self.types) > 1:
            has, other = one.use[start:end, None] > 0, two.use[None] > 0
            fits &= (has <= other).all(axis=2) | (other <= has).all(axis=2)
        return fits

    def _times(
        self, mask: int, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints
    ) -> Times:
        first, second = Times(*one.times[left].T), Times(*two.times[right].T)
        return self.rules.seen(mask, self.rules.join(step.kind, step.cut, first, second))

    def _use(self, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints) -> Ints:
        if step.kind == "space":
            return one.use[left] + two.use[right]
        return np.maximum(one.use[left], two.use[right])

    def _memory(
        self, step: Step, one: Frontier, two: Frontier, left: Ints, right: Ints
    ) -> tuple[Ints, Ints]:
        first, second = one.memory[left], two.memory[right]
        loaded = np.maximum(first[:, 1], second[:, 1])
        if step.kind == "time":
            return first[:, 0] + second[:, 0], loaded
        return np.maximum(first[:, 0], second[:, 0]), loaded

    def _empty(self) -> Frontier:
        return self.frontiers[1].take(np.zeros(0, dtype=np.int64))


class Bounds:
    """What a part of a tree cannot lack, whatever the rest looks like: lower bounds of a whole step."""

    def __init__(self, dynamic: Dynamic) -> None:
        self.limit = dynamic.limit
        self.room = dynamic.room
        self.blocks = dynamic.rules.blocks
        self.fronts = [dynamic.frontiers[1 << number] for number in range(len(self.blocks.blocks))]
        self.space = "space" in dynamic.kinds
        self.before = {mask: self._chain(mask, ahead=False) for mask in self.blocks.masks}
        self.behind = {mask: self._chain(mask, ahead=True) for mask in self.blocks.masks}

    def allow(self, mask: int, seconds: Floats, use: Ints) -> Mask:
        """Which of some ways for a set of blocks could be part of a tree within the limit."""
        if not np.isfinite(self.limit):
            return np.ones(len(seconds), dtype=bool)
        spent = seconds + self.before[mask] + self.behind[mask]
        allowed = np.asarray(spent <= self.limit)
        for number, front in enumerate(self.fronts):
            if not mask >> number & 1 and len(front):
                allowed &= self._leaves_room(front, seconds, use)
        return allowed

    def _leaves_room(self, front: Frontier, seconds: Floats, use: Ints) -> Mask:
        """A block outside either adds its time or has devices of its own."""
        adds = np.asarray(seconds + front.times[:, 2].min() <= self.limit)
        for row in _least_use(front.use) if self.space else ():
            adds |= (use + row <= self.room).all(axis=1)
        return adds

    def _chain(self, mask: int, ahead: bool) -> float:
        """Least fill of the longest chain of blocks before a set (or after it)."""
        column = 3 if ahead else 0
        lengths = [0.0] * len(self.fronts)
        links = [(link.source, link.target) for link in self.blocks.links]
        for _ in self.fronts:
            for source, target in links:
                here, further = (source, target) if ahead else (target, source)
                if not mask >> further & 1:
                    least = self.fronts[further].times[:, column].min(initial=np.inf)
                    lengths[here] = max(lengths[here], lengths[further] + float(least))
        return max(length for number, length in enumerate(lengths) if mask >> number & 1)


def _least_use(use: Ints) -> list[Ints]:
    """For every set of types used, devices that a block needs at least."""
    patterns = (use > 0) @ (1 << np.arange(use.shape[1]))
    return [use[patterns == pattern].min(axis=0) for pattern in np.unique(patterns)]


def chunk_sizes(samples: int, quantum: int, streams: bool) -> list[int]:
    """Sizes of chunks that are tried: all samples (0), then 1/2, 1/3, 1/4, 1/6, ... in whole quanta."""
    if not streams:
        return [0]
    waves = sorted({2**power * odd for power, odd in itertools.product(range(7), (1, 3))})
    sizes = [-(-samples // (wave * quantum)) * quantum for wave in waves if 1 < wave <= 64]
    return [0, *dict.fromkeys(size for size in sizes if size < samples)]

