"""The fastest trees over all chunk sizes: first on a few numbers of devices, then on all that can matter."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule.blocks import Blocks
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.dynamic import Dynamic, chunk_sizes
from rlinf_core.schedule.frontier import APART, SHARED
from rlinf_core.schedule.options import DENSE, Options, Priced
from rlinf_core.schedule.tree import Kind, Rules, Tree, leaves

COARSE = 1.5  # between the numbers of devices that are tried first
NEAR = 1.25  # around the best ones, where all are tried next
BOTH: tuple[Kind, ...] = ("time", "space")
MIXED = SHARED | APART
MOST = 4  # trees that are kept of one chunk size


@dataclass(frozen=True)
class Found:
    """A tree, the chunk size it is for, and its time."""

    tree: Tree
    chunk: int
    seconds: float


class Optimum:
    """Finds the fastest trees of one graph on one cluster."""

    def __init__(self, blocks: Blocks, cost: CostModel, dense: int = DENSE) -> None:
        self.blocks = blocks
        self.cost = cost
        self.options = Options(blocks, cost, dense)
        self.chunks = chunk_sizes(blocks.graph.samples, blocks.quantum, bool(blocks.streams))
        self._priced: dict[tuple[int, int], list[Priced]] = {}

    def best(self, kinds: Collection[Kind] = BOTH, mixed: bool = False) -> list[Found]:
        """The fastest tree of all and some more, fastest first.

        With `mixed`, of those trees only whose parts share some devices, but not all have the same.
        """
        found: list[Found] = []
        for near in (False, True):
            best = min(found, key=_time, default=None) if near else None
            for chunk in self._order(found):
                options = self._few(chunk, best)
                found += self._solve(chunk, kinds, mixed, _limit(found), options)
        for chunk in self._order(found):
            found += self._solve(chunk, kinds, mixed, _limit(found), self._all(chunk))
        return sorted(found, key=_time)

    def collocated(self) -> Found | None:
        """The fastest tree whose parts all run one after the other on the same devices."""
        groups = self._alike()
        least = {key: sum(min(map(_seconds, part)) for part in parts) for key, parts in groups.items()}
        found: list[Found] = []
        for key in sorted(groups, key=lambda one: least[one]):
            if least[key] >= _limit(found):
                break
            options = dict(enumerate(groups[key]))
            found += self._solve(0, ("time",), False, _limit(found), options)
        return min(found, key=_time, default=None)

    def _alike(self) -> dict[tuple[str, int], list[list[Priced]]]:
        """By type and number of devices, the options of every block, where all blocks have some."""
        numbers = range(len(self.blocks.blocks))
        found: dict[tuple[str, int], list[list[Priced]]] = {}
        for kind in self.cost.cluster.types:
            counts = {count for number in numbers for count in self.options.all_counts(number, kind)}
            for count in counts:
                parts = [list(self.options.exactly(number, kind, count)) for number in numbers]
                if all(parts):
                    found[kind, count] = parts
        return found

    def _order(self, found: list[Found]) -> list[int]:
        least = {one.chunk: one.seconds for one in sorted(found, key=_time, reverse=True)}
        return sorted(self.chunks, key=lambda chunk: least.get(chunk, math.inf))

    def _solve(
        self,
        chunk: int,
        kinds: Collection[Kind],
        mixed: bool,
        limit: float,
        options: dict[int, list[Priced]],
    ) -> list[Found]:
        dynamic = Dynamic(Rules(self.blocks, self.cost, chunk), options, kinds, limit, mixed)
        whole = dynamic.solve()
        rows = np.flatnonzero(whole.style == MIXED) if mixed else np.arange(len(whole))
        rows = rows[np.argsort(whole.times[rows, 2], kind="stable")][:MOST]
        return [
            Found(dynamic.tree(self.blocks.all, int(row)), chunk, float(whole.times[row, 2])) for row in rows
        ]

    def _all(self, chunk: int) -> dict[int, list[Priced]]:
        return {number: self._of(number, chunk) for number in range(len(self.blocks.blocks))}

    def _of(self, number: int, chunk: int) -> list[Priced]:
        found = list(self._cached(number, 0))
        if chunk and number in self.blocks.streams:
            found += self._cached(number, chunk)
        return found

    def _cached(self, number: int, chunk: int) -> list[Priced]:
        key = (number, chunk)
        if key not in self._priced:
            self._priced[key] = list(self.options.of(number, chunk))
        return self._priced[key]

    def _few(self, chunk: int, best: Found | None) -> dict[int, list[Priced]]:
        """Options with few numbers of devices, and those near the best that was found."""
        chosen = {leaf.option.block: leaf.option for leaf in leaves(best.tree)} if best else {}
        few: dict[int, list[Priced]] = {}
        for number in range(len(self.blocks.blocks)):
            seats = chosen[number].seats if number in chosen else ()
            near = {
                count
                for seat in seats
                for count in self.options.counts(number, seat.device_type, seat.model_parallel)
                if seat.devices / NEAR <= count <= seat.devices * NEAR
            }
            few[number] = [
                priced
                for priced in self._of(number, chunk)
                if all(_coarse(seat.devices) or seat.devices in near for seat in priced.option.seats)
            ]
        return few


def _time(found: Found) -> float:
    return found.seconds


def _limit(found: list[Found]) -> float:
    return min((one.seconds for one in found), default=math.inf)


def _seconds(priced: Priced) -> float:
    return priced.early + priced.late


def _coarse(count: int) -> bool:
    """Whether a number is the first in its step of a geometric series."""
    return count == 1 or math.floor(math.log(count, COARSE)) != math.floor(math.log(count - 1, COARSE))
