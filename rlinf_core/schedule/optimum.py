"""The fastest trees over all chunk sizes: first on a few numbers of devices, then on all that can matter."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlinf_core.schedule.apart import Apart
from rlinf_core.schedule.blocks import Blocks
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.dynamic import Dynamic, chunk_sizes
from rlinf_core.schedule.frontier import Ints
from rlinf_core.schedule.options import DENSE, Options
from rlinf_core.schedule.single import Single
from rlinf_core.schedule.table import Table, Wanted, both, lean, table
from rlinf_core.schedule.tree import Kind, Rules, Split, Tree, leaves

RATIOS = (3.0, 1.4)  # between the numbers of devices that are tried first
TIME: tuple[Kind, ...] = ("time",)
SPACE: tuple[Kind, ...] = ("space",)
MOST_TIMES, FEW_TIMES = 6, 2
ENOUGH = 0.99  # as long as the time falls below such a share
BOTH: tuple[Kind, ...] = ("time", "space")
MOST = 4  # trees that are kept of one chunk size


@dataclass(frozen=True)
class Found:
    """A tree, the chunk size it is for, its time, and whether its parts share devices or are apart."""

    tree: Tree
    chunk: int
    seconds: float
    style: int


class Optimum:
    """Finds the fastest trees of one graph on one cluster."""

    def __init__(self, blocks: Blocks, cost: CostModel, dense: int = DENSE) -> None:
        self.blocks = blocks
        self.cost = cost
        self.options = Options(blocks, cost, dense)
        fine = cost.cluster.size <= DENSE
        self.chunks = chunk_sizes(blocks.graph.samples, blocks.quantum, bool(blocks.streams), fine)
        self._tables: dict[tuple[int, int], Table] = {}
        self._rules: dict[int, Rules] = {}
        self._numbers = range(len(blocks.blocks))
        self._singles: dict[int, Single] = {}
        self._apart: dict[int, Apart] = {}

    def best(
        self, kinds: Collection[Kind] = BOTH, mixed: bool = False, limit: float = math.inf, sure: bool = True
    ) -> list[Found]:
        """The fastest tree of all within a limit and some more, fastest first.

        With `mixed`, of those trees only whose parts share some devices, but not all have the same. If it
        need not be `sure`, the first may be a little slower than the fastest.
        """
        found: list[Found] = []
        for ratio in RATIOS:
            for chunk in self._order(found):
                found += self._solve(chunk, kinds, mixed, min(limit, _limit(found)), Wanted((), ratio))
        for _ in range(MOST_TIMES if found and sure else FEW_TIMES if found else 0):
            best = min(found, key=_time)
            near = min(limit, best.seconds)
            found += self._solve(best.chunk, kinds, mixed, near, Wanted(()), best)
            if _limit(found) > best.seconds * ENOUGH:
                break
        for chunk in self._order(found) if sure else ():
            found += self._solve(chunk, kinds, mixed, min(limit, _limit(found)))
        return sorted(found, key=_time)

    def collocated(self) -> Found | None:
        """The fastest tree whose parts all run one after the other on the same devices."""
        found: list[Found] = []
        for least, kind, count in sorted(self._alike()):
            if least >= _limit(found):
                break
            tables = [
                table(list(self.options.exactly(number, kind, count)), self.cost.cluster.types)
                for number in self._numbers
            ]
            found += self._run(0, tables, TIME, False, _limit(found))
        return min(found, key=_time, default=None)

    def _alike(self) -> list[tuple[float, str, int]]:
        """Types and numbers of devices on which every block can run, each with the seconds that they take
        at least one after the other."""
        found = []
        for kind in self.cost.cluster.types:
            counts = {count for number in self._numbers for count in self.options.all_counts(number, kind)}
            for count in counts:
                seats = [self.options.exact_seats(number, kind, count) for number in self._numbers]
                if all(seats):
                    least = [
                        min(self.options.seated_s(number, seat) for seat in places)
                        for number, places in enumerate(seats)
                    ]
                    found.append((sum(least), kind, count))
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
        few: Wanted | None = None,
        best: Found | None = None,
    ) -> list[Found]:
        """Trees within a limit, of all options or of few: some, and those near the best so far."""
        tables = []
        for number in self._numbers:
            wanted = self._near(number, few, best) if few and best else few
            tables.append(self._table(number, chunk, limit, wanted))
        if chunk and not best and not any(one.in_chunks(limit) for one in tables):
            return []  # nothing that is not there without chunks
        return self._run(chunk, tables, kinds, mixed, limit)

    def _run(
        self, chunk: int, tables: Sequence[Table], kinds: Collection[Kind], mixed: bool, limit: float
    ) -> list[Found]:
        if chunk not in self._rules:
            self._rules[chunk] = Rules(self.blocks, self.cost, chunk)
        rules = self._rules[chunk]
        fronts = [one.frontier(rules, number) for number, one in enumerate(tables)]
        dynamic = Dynamic(rules, fronts, kinds, limit, mixed)
        whole = dynamic.solve(MOST)
        return [
            Found(self._tree(dynamic, tables, self.blocks.all, made), chunk, float(seconds), int(style))
            for made, seconds, style in zip(whole.made, whole.times[:, 2], whole.style, strict=True)
        ]

    def _tree(self, dynamic: Dynamic, tables: Sequence[Table], mask: int, made: Ints) -> Tree:
        """How a row was made."""
        step, one, two = (int(number) for number in made)
        if step < 0:
            return tables[mask.bit_length() - 1].priced[one]
        cut = dynamic.steps[step]
        first, second = dynamic.frontiers[cut.first].made[one], dynamic.frontiers[cut.second].made[two]
        return Split(
            cut.kind,
            self._tree(dynamic, tables, cut.first, first),
            self._tree(dynamic, tables, cut.second, second),
        )

    def _table(self, number: int, chunk: int, limit: float, wanted: Wanted | None) -> Table:
        found = self._lean(number, 0)
        if chunk and number in self.blocks.streams:
            found = both(found, self._lean(number, chunk))
        if wanted is not None:
            found = found.take(np.flatnonzero(wanted.rows(found.use, self.cost.cluster.types)))
        if not self.blocks.blocks[number].cycle:
            return found
        if number not in self._apart:
            self._apart[number] = Apart(self.options, number)
        return both(found, self._apart[number].table(limit, wanted))

    def _lean(self, number: int, chunk: int) -> Table:
        if (number, chunk) not in self._tables:
            if self.blocks.blocks[number].cycle:
                found = table(list(self.options.of(number, chunk)), self.cost.cluster.types)
            else:
                found = self._single(number).table(chunk)
            self._tables[number, chunk] = lean(found)
        return self._tables[number, chunk]

    def _single(self, number: int) -> Single:
        if number not in self._singles:
            self._singles[number] = Single(self.options, number)
        return self._singles[number]

    def _near(self, number: int, few: Wanted, best: Found) -> Wanted:
        chosen = next(leaf.option for leaf in leaves(best.tree) if leaf.option.block == number)
        return replace(few, seats=chosen.seats)


def _time(found: Found) -> float:
    return found.seconds


def _limit(found: list[Found]) -> float:
    return min((one.seconds for one in found), default=math.inf)
