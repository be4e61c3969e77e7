"""What a part of a plan cannot lack, whatever the rest looks like: lower bounds of a whole step."""

from __future__ import annotations

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
    """The least of one of the four times of a block on so many devices of each type."""

    def __init__(self, front: Frontier, room: Ints, seconds: Floats) -> None:
        kinds = (front.use > 0).sum(axis=1)
        self._mixed = float(seconds[kinds > 1].min(initial=np.inf))
        self._by_type = []
        for place, most in enumerate(room):
            least = np.full(int(most) + 1, np.inf)
            rows = (kinds == 1) & (front.use[:, place] > 0)
            np.minimum.at(least, front.use[rows, place], seconds[rows])
            self._by_type.append(np.minimum.accumulate(least))

    def on(self, room: Ints) -> Floats:
        """For every row of device counts by type, all of them zero or more."""
        found = np.full(len(room), self._mixed)
        for place, least in enumerate(self._by_type):
            found = np.minimum(found, least[room[:, place]])
        return found


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
        self.fill = {mask: self._chain(mask, False) + self._chain(mask, True) for mask in blocks.masks}
        single = [1 << number for number in range(len(blocks.blocks))]
        self.least_s = {mask: float(fronts[mask].times[:, 2].min(initial=np.inf)) for mask in single}
        self.rivals = list(self._rivals(single)) if np.isfinite(limit) else []
        self.work = self._work(single)
        self.fastest = {one: self._fastest(one, 2) for one in single}
        self.first = {one: self._fastest(one, 0) for one in single}
        self.last = {one: self._fastest(one, 3) for one in single}
        self._pairs = {mask: self._around(mask, single) for mask in blocks.masks}

    def allow(self, mask: int, times: Times, use: Ints) -> Mask:
        """Which of some ways for a set of blocks could be part of a plan within the limit."""
        seconds = times.c
        if not np.isfinite(self.limit):
            return np.ones(len(seconds), dtype=bool)
        weights, shares = self.work
        left = float(weights @ self.room) * self.limit - seconds * (use @ weights)
        rest = sum(share for one, share in shares.items() if not one & mask)
        allowed = np.asarray(seconds + self.fill[mask] <= self.limit)
        allowed &= np.asarray(left >= rest * (1 - 1e-9))
        for rivals in self.rivals:
            if not rivals.mask & mask:
                adds = np.asarray(seconds + rivals.least_s <= self.limit) & ("time" in self.kinds)
                allowed &= adds | self._has_room(rivals, mask, times, use)
        for before, after in self._pairs[mask]:
            allowed &= self._between_s(before, after, times, self.room - use) <= self.limit
        return allowed

    def _around(self, mask: int, single: list[int]) -> list[tuple[int, int]]:
        """Blocks before a set with blocks after it, 0 where there is none."""
        outside = [one for one in single if not one & mask]
        before = [one for one in outside if self._reach(one, mask)] or [0]
        after = [one for one in outside if self._reach(mask, one)] or [0]
        return [pair for pair in itertools.product(before, after) if pair != (0, 0)]

    def _between_s(self, before: int, after: int, times: Times, room: Ints) -> Floats:
        """Least seconds of a set of blocks with a block before it and one after it, each of them on the
        set's devices in turn with it, or beside it in the room that it leaves."""
        given = [(times.a, times.c)]  # when the set has given its first samples and its last
        if before:
            turn, fill = self._turn(before), self._apart(self.first[before], room)
            last = np.maximum(self._apart(self.fastest[before], room) + times.d, fill + times.c)
            given = [(turn + times.a, turn + times.c), (fill + times.a, last)]
        if not after:
            return np.minimum(*(last for _, last in given))
        turn, fill, fastest = (
            self._turn(after),
            self._apart(self.last[after], room),
            self._apart(self.fastest[after], room),
        )
        ways = [np.minimum(last + turn, np.maximum(first + fastest, last + fill)) for first, last in given]
        return np.min(ways, axis=0)

    def _turn(self, one: int) -> float:
        return self.least_s[one] if "time" in self.kinds else np.inf

    def _apart(self, fastest: _Fastest, room: Ints) -> Floats:
        return fastest.on(room) if "space" in self.kinds else np.full(len(room), np.inf)

    def _fastest(self, one: int, column: int) -> _Fastest:
        return _Fastest(self.fronts[one], self.room, self.fronts[one].times[:, column])

    def _has_room(self, rivals: Rivals, mask: int, times: Times, use: Ints) -> Mask:
        """Where rivals could have devices of their own beside a set of blocks."""
        if "space" not in self.kinds:
            return np.zeros(len(use), dtype=bool)
        if rivals.mask.bit_count() == 1:
            fill = self._between(rivals.mask, mask, times)
            return np.asarray(self.fastest[rivals.mask].on(self.room - use) + fill <= self.limit)
        room = np.zeros(len(use), dtype=bool)
        for row in rivals.use:
            room |= (use + row <= self.room).all(axis=1)
        return room

    def _between(self, one: int, mask: int, times: Times) -> Floats | float:
        """What a set of blocks takes at least after a block before it has ended, or before one after it
        can begin."""
        if self._reach(one, mask):
            return times.d
        return times.a if self._reach(mask, one) else 0.0

    def _reach(self, first: int, second: int) -> bool:
        """Whether links lead from one set to the other."""
        seen = first
        for _ in self.blocks.blocks:
            for link in self.blocks.links:
                seen |= (seen >> link.source & 1) << link.target
        return bool(seen & second)

    def forget(self, mask: int, memory: Ints) -> Ints:
        """Memory of ways for a set of blocks, 0 where it fits beside whatever the others hold."""
        others = [front.memory for one, front in self.fronts.items() if not one & mask and len(front)]
        kept = sum(int(one[:, 0].max()) for one in others)
        loaded = max((int(one[:, 1].max()) for one in others), default=0)
        fits = memory[:, 0] + np.maximum(memory[:, 1], loaded) + kept <= GRAIN
        return np.where(fits[:, None], 0, memory)

    def _rivals(self, single: list[int]) -> list[Rivals]:
        found = []
        most = LARGEST if "time" in self.kinds else len(single)
        for count in range(1, most + 1):
            for group in itertools.combinations(single, count):
                apart = "time" not in self.kinds or all(
                    self.least_s[one] + self.least_s[two] > self.limit
                    for one, two in itertools.combinations(group, 2)
                )
                if apart and all(len(self.fronts[one]) for one in group):
                    ways = [_least_use(self.fronts[one].use) for one in group]
                    use = np.array([np.sum(way, axis=0) for way in itertools.product(*ways)])
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
                    least = self.fronts[1 << further].times[:, column].min(initial=np.inf)
                    lengths[here] = max(lengths[here], lengths[further] + float(least))
        return max(length for number, length in enumerate(lengths) if mask >> number & 1)


def _least_use(use: Ints) -> list[Ints]:
    """For every set of types used, devices that a block needs at least."""
    patterns = (use > 0) @ (1 << np.arange(use.shape[1]))
    return [use[patterns == pattern].min(axis=0) for pattern in np.unique(patterns)]
