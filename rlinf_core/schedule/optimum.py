"""The fastest trees over all chunk sizes: first on a few numbers of devices, then on all that can matter."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule.blocks import Blocks
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.dynamic import Dynamic, chunk_sizes
from rlinf_core.schedule.frontier import Ints, Mask
from rlinf_core.schedule.options import DENSE, Options, Priced
from rlinf_core.schedule.table import Table, table
from rlinf_core.schedule.tree import Kind, Rules, Split, Tree, leaves

COARSE = 1.5  # between the numbers of devices that are tried first
NEAR = 1.25  # around the best ones, where all are tried next
BOTH: tuple[Kind, ...] = ("time", "space")
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
        self._tables: dict[tuple[int, int], Table] = {}

    def best(self, kinds: Collection[Kind] = BOTH, mixed: bool = False) -> list[Found]:
        """The fastest tree of all and some more, fastest first.

        With `mixed`, of those trees only whose parts share some devices, but not all have the same.
        """
        found: list[Found] = []
        same = self.collocated() if len(kinds) == len(BOTH) and not mixed else None
        limit = math.inf if same is None else same.seconds
        for near in (False, True):
            best = min(found, key=_time, default=None) if near else None
            for chunk in self._order(found):
                rows = self._few(chunk, best)
                found += self._solve(chunk, kinds, mixed, min(limit, _limit(found)), rows)
        for chunk in self._order(found):
            found += self._solve(chunk, kinds, mixed, min(limit, _limit(found)))
        return sorted(found, key=_time)

    def collocated(self) -> Found | None:
        """The fastest tree whose parts all run one after the other on the same devices."""
        groups = self._alike()
        found: list[Found] = []
        for key in sorted(groups, key=lambda one: sum(map(_least, groups[one]))):
            if sum(map(_least, groups[key])) >= _limit(found):
                break
            tables = [table(priced, self.cost.cluster.types) for priced in groups[key]]
            found += self._run(0, tables, ("time",), False, _limit(found), None)
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
        rows: Sequence[Mask] | None = None,
    ) -> list[Found]:
        tables = [self._table(number, chunk) for number in range(len(self.blocks.blocks))]
        return self._run(chunk, tables, kinds, mixed, limit, rows)

    def _run(
        self,
        chunk: int,
        tables: Sequence[Table],
        kinds: Collection[Kind],
        mixed: bool,
        limit: float,
        rows: Sequence[Mask] | None,
    ) -> list[Found]:
        rules = Rules(self.blocks, self.cost, chunk)
        fronts = [
            one.frontier(rules, number, None if rows is None else rows[number])
            for number, one in enumerate(tables)
        ]
        dynamic = Dynamic(rules, fronts, kinds, limit, mixed)
        whole = dynamic.solve(MOST)
        return [
            Found(self._tree(dynamic, tables, self.blocks.all, made), chunk, float(seconds))
            for made, seconds in zip(whole.made, whole.times[:, 2], strict=True)
        ]

    def _tree(self, dynamic: Dynamic, tables: Sequence[Table], mask: int, made: Ints) -> Tree:
        """How a row was made."""
        step, one, two = (int(number) for number in made)
        if step < 0:
            return tables[mask.bit_length() - 1].priced[one]
        cut = dynamic.steps[step]
        first, second = (dynamic.frontiers[part].made[row] for part, row in ((cut.first, one), (cut.second, two)))
        return Split(
            cut.kind,
            self._tree(dynamic, tables, cut.first, first),
            self._tree(dynamic, tables, cut.second, second),
        )

    def _table(self, number: int, chunk: int) -> Table:
        if chunk and number not in self.blocks.streams:
            chunk = 0
        if (number, chunk) not in self._tables:
            priced = list(self.options.of(number, 0))
            if chunk:
                priced += self.options.of(number, chunk)
            self._tables[number, chunk] = table(priced, self.cost.cluster.types)
        return self._tables[number, chunk]

    def _few(self, chunk: int, best: Found | None) -> list[Mask]:
        """Rows with few numbers of devices, and those near the best that was found."""
        chosen = {leaf.option.block: leaf.option for leaf in leaves(best.tree)} if best else {}
        few = []
        for number in range(len(self.blocks.blocks)):
            seats = chosen[number].seats if number in chosen else ()
            use = self._table(number, chunk).use
            near = _coarse(use.sum(axis=1))
            for seat in seats:
                place = self.cost.cluster.types.index(seat.device_type)
                near |= (use[:, place] >= seat.devices / NEAR) & (use[:, place] <= seat.devices * NEAR)
            few.append(near)
        return few


def _time(found: Found) -> float:
    return found.seconds


def _limit(found: list[Found]) -> float:
    return min((one.seconds for one in found), default=math.inf)


def _least(priced: Sequence[Priced]) -> float:
    return min(one.early + one.late for one in priced)


def _coarse(counts: Ints) -> Mask:
    """Which numbers are the first in their step of a geometric series, or the largest."""
    steps = np.floor(np.log(counts) / math.log(COARSE))
    before = np.floor(np.log(np.maximum(counts - 1, 0.5)) / math.log(COARSE))
    return np.asarray((steps != before) | (counts == counts.max(initial=0)))
