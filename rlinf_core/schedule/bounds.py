"""What a part of a plan cannot lack, whatever the rest looks like: lower bounds of a whole step."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.blocks import Blocks
from rlinf_core.schedule.cost import GRAIN
from rlinf_core.schedule.frontier import Floats, Frontier, Ints, Mask

LARGEST = 3  # groups of rivals


@dataclass(frozen=True)
class Rivals:
    """Blocks of which no two can take turns on the same devices in time."""

    mask: int
    least_s: float  # of the fastest of them
    use: Ints  # [ways, types] that they need at least together


class _Fastest:
    """The least of each of the four times of one block on so many devices of each type."""

    def __init__(self, front: Frontier, room: Ints) -> None:
        self._front = front
        self._room = room
        self._known: dict[int, tuple[float, list[Floats]]] = {}

    def on(self, room: Ints, column: int) -> Floats:
        """For every row of device counts by type, all of them zero or more."""
        if column not in self._known:
            self._known[column] = self._least(self._front.times[:, column])
        mixed, by_type = self._known[column]
        found = by_type[0][room[:, 0]]
        for place, least in enumerate(by_type[1:], 1):
            found = np.minimum(found, least[room[:, place]])
        return np.minimum(found, mixed) if mixed < np.inf else found

    def _least(self, seconds: Floats) -> tuple[float, list[Floats]]:
        """Of ways on several types, and by number of devices of each type."""
        kinds = (self._front.use > 0).sum(axis=1)
        by_type = []
        for place, most in enumerate(self._room):
            least = np.full(int(most) + 1, np.inf)
            rows = (kinds == 1) & (self._front.use[:, place] > 0)
            np.minimum.at(least, self._front.use[rows, place], seconds[rows])
            by_type.append(np.minimum.accumulate(least))
        return float(seconds[kinds > 1].min(initial=np.inf)), by_type


class _Spare:
    """What blocks take at least on the devices that some ways leave."""

    def __init__(self, fastest: Mapping[int, _Fastest], room: Ints, space: bool) -> None:
        self.room = room
        self._fastest = fastest
        self._space = space
        self._known: dict[tuple[int, int], Floats] = {}

    def least(self, one: int, column: int) -> Floats:
        """One of the four times of one block."""
        if (one, column) not in self._known:
            found = (
                self._fastest[one].on(self.room, column) if self._space else np.full(len(self.room), np.inf)
            )
            self._known[one, column] = found
        return self._known[one, column]


class Bounds:
    """Tells which ways for a set of blocks cannot be part of a plan within a limit of seconds.

    `fronts` are the ways of single blocks, by set. `space` and `time` say how parts may be joined.
    """

    def __init__(
        self,
        blocks: Blocks,
        fronts: Mapping[int, Frontier],
        room: Ints,
        limit: float,
        kinds: Collection[str],
    ) -> None:
        self.blocks = blocks
        self.fronts = fronts
        self.room = room
        self.limit = limit
        self.kinds = kinds
        single = [1 << number for number in range(len(blocks.blocks))]
        self._least = {one: fronts[one].times.min(axis=0, initial=np.inf) for one in single}
        self.least_s = {one: float(least[2]) for one, least in self._least.items()}
        self.fill = {mask: self._chain(mask, False) + self._chain(mask, True) for mask in blocks.masks}
        self.rivals = list(self._rivals(single)) if np.isfinite(limit) else []
        self.work = self._work(single)
        self.fastest = {one: _Fastest(fronts[one], room) for one in single}

    def allow(self, mask: int, times: Times, use: Ints) -> Mask:
        """Which of some ways for a set of blocks could be part of a plan within the limit."""
        if not np.isfinite(self.limit):
            return np.ones(len(use), dtype=bool)
        allowed = self._in_time(mask, times.c, use)
        rows = np.flatnonzero(allowed)
        if len(rows):
            left = Times(*(column[rows] for column in times))
            allowed[rows] = self._beside(mask, left, use[rows])
        return allowed

    def _in_time(self, mask: int, seconds: Floats, use: Ints) -> Mask:
        """Which leave time for all that comes before and after, and work enough for all others."""
        weights, shares = self.work
        left = float(weights @ self.room) * self.limit - seconds * (use @ weights)
        rest = sum(share for one, share in shares.items() if not one & mask)
        return np.asarray((seconds + self.fill[mask] <= self.limit) & (left >= rest * (1 - 1e-9)))

    def _beside(self, mask: int, times: Times, use: Ints) -> Mask:
        """Which leave room or time for each of the others."""
        spare = _Spare(self.fastest, self.room - use, "space" in self.kinds)
        allowed = np.ones(len(use), dtype=bool)
        for rivals in self.rivals:
            if not rivals.mask & mask:
                room = self._has_room(rivals, mask, times, spare)
                if "time" in self.kinds:
                    room |= times.c + rivals.least_s <= self.limit
                allowed &= room
        for before, after in self.blocks.around(mask):
            allowed &= self._between_s(before, after, times, spare) <= self.limit
        return allowed

    def _between_s(self, before: int, after: int, times: Times, spare: _Spare) -> Floats:
        """Least seconds of a set of blocks with a block before it and one after it, each of them on the
        set's devices in turn with it, or beside it on those that it leaves."""
        given = [(times.a, times.c)]  # when the set has given its first samples and its last
        if before:
            turn, fill = self._turn(before), spare.least(before, 0)
            last = np.maximum(spare.least(before, 2) + times.d, fill + times.c)
            given = [(turn + times.a, turn + times.c), (fill + times.a, last)]
        if not after:
            return np.minimum(given[0][1], given[1][1])
        turn, whole, fill = self._turn(after), spare.least(after, 2), spare.least(after, 3)
        ways = [np.minimum(last + turn, np.maximum(first + whole, last + fill)) for first, last in given]
        least: Floats = functools.reduce(np.minimum, ways)
        return least

    def _turn(self, one: int) -> float:
        return self.least_s[one] if "time" in self.kinds else np.inf

    def _has_room(self, rivals: Rivals, mask: int, times: Times, spare: _Spare) -> Mask:
        """Where rivals could have devices of their own beside a set of blocks."""
        room = np.zeros(len(spare.room), dtype=bool)
        if "space" not in self.kinds:
            return room
        if rivals.mask.bit_count() == 1:
            fill = self._between(rivals.mask, mask, times)
            return np.asarray(spare.least(rivals.mask, 2) + fill <= self.limit)
        for row in rivals.use:
            room |= (row <= spare.room).all(axis=1)
        return room

    def _between(self, one: int, mask: int, times: Times) -> Floats | float:
        """What a set of blocks takes at least after a block before it has ended, or before one after it
        can begin."""
        if self.blocks.reach(one, mask):
            return times.d
        return times.a if self.blocks.reach(mask, one) else 0.0

    def forget(self, mask: int, memory: Ints) -> Ints:
        """Memory of ways for a set of blocks, 0 where it fits beside whatever the others hold."""
        others = [front.memory for one, front in self.fronts.items() if not one & mask and len(front)]
        kept = sum(int(one[:, 0].max()) for one in others)
        loaded = max((int(one[:, 1].max()) for one in others), default=0)
        fits = memory[:, 0] + np.maximum(memory[:, 1], loaded) + kept <= GRAIN
        return np.where(fits[:, None], 0, memory)

    def _rivals(self, single: list[int]) -> list[Rivals]:
        found = []
        least = {one: _least_use(self.fronts[one].use) for one in single}
        most = LARGEST if "time" in self.kinds else len(single)
        for count in range(1, most + 1):
            for group in itertools.combinations(single, count):
                apart = "time" not in self.kinds or all(
                    self.least_s[one] + self.least_s[two] > self.limit
                    for one, two in itertools.combinations(group, 2)
                )
                if apart and all(len(self.fronts[one]) for one in group):
                    ways = itertools.product(*(least[one] for one in group))
                    use = np.array([sum(way) for way in ways])
                    found.append(Rivals(sum(group), min(self.least_s[one] for one in group), use))
        return found

    def _work(self, single: list[int]) -> tuple[Floats, dict[int, float]]:
        """Weights of device types, and least weighted device seconds of every block.

        All blocks' weighted device seconds must fit into all devices' until the limit.
        """
        least = np.full((len(single), len(self.room)), np.inf)
        for place, one in enumerate(single):
            front = self.fronts[one]
            for kind in range(len(self.room)):
                alone = front.use[:, kind] == front.use.sum(axis=1)
                least[place, kind] = (front.use[alone, kind] * front.times[alone, 2]).min(initial=np.inf)
        known = np.where(np.isfinite(least), least, 0.0).sum(axis=0)
        weights = np.where(known > 0, 1.0 / np.maximum(known, 1e-300), 0.0)
        areas = {one: (self.fronts[one].use @ weights) * self.fronts[one].times[:, 2] for one in single}
        return weights, {one: float(area.min(initial=np.inf)) for one, area in areas.items()}

    def _chain(self, mask: int, ahead: bool) -> float:
        """Least fill of the longest chain of blocks before a set (or after it)."""
        count = len(self.blocks.blocks)
        lengths = [0.0] * count
        for _ in range(count):
            for link in self.blocks.links:
                here, further = (link.source, link.target) if ahead else (link.target, link.source)
                if not mask >> further & 1:
                    waits = mask == 1 << here and self.blocks.blocks[here].cycle  # yields all at its end
                    column = (2 if waits else 3) if ahead else 0
                    least = float(self._least[1 << further][column])
                    lengths[here] = max(lengths[here], lengths[further] + least)
        return max(length for number, length in enumerate(lengths) if mask >> number & 1)


def _least_use(use: Ints) -> list[Ints]:
    """For every set of types used, devices that a block needs at least."""
    patterns = (use > 0) @ (1 << np.arange(use.shape[1]))
    return [use[patterns == pattern].min(axis=0) for pattern in np.unique(patterns)]
