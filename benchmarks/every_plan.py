"""Random small problems of planning, and the fastest plan of each by trying all there are.

Nothing is left out for being beaten by something else, which is what the search does: only ways that need
more devices or memory than there are, and repetitions of the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.blocks import contract
from rlinf_core.schedule.cost import GRAIN, CostModel
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.dynamic import chunk_sizes
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.options import Options, Priced
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.tree import Kind, Rules

Problem = tuple[Graph, Profile, Cluster]
Rows = npt.NDArray[np.float64]  # four times, memory kept, memory more while working, devices of each type

MOST = 3_000_000  # pairs looked at at once


class EveryPlan:
    """All plans of a problem, for one chunk size."""

    def __init__(self, problem: Problem, chunk: int) -> None:
        graph, profile, self.cluster = problem
        self.blocks = contract(graph)
        cost = CostModel(graph, profile, self.cluster)
        self.rules = Rules(self.blocks, cost, chunk)
        self.options = Options(self.blocks, cost)
        self.room = np.array([self.cluster.count(kind) for kind in self.cluster.types])
        self._known: dict[int, Rows] = {}

    def fastest(self) -> float:
        """Seconds of the fastest plan; infinite where none fits."""
        found = self._joined(self.blocks.all) if len(self.blocks.blocks) > 1 else iter([self._of(1)])
        return min((float(rows[:, 2].min()) for rows in found if len(rows)), default=float("inf"))

    def _of(self, mask: int) -> Rows:
        if mask not in self._known:
            leaf = mask.bit_count() == 1
            parts = [self._leaf(mask.bit_length() - 1)] if leaf else list(self._joined(mask))
            self._known[mask] = np.unique(np.concatenate(parts), axis=0)
        return self._known[mask]

    def _leaf(self, number: int) -> Rows:
        chunks = {0, self.rules.chunk if number in self.blocks.streams else 0}
        ways = [priced for chunk in chunks for priced in self.options.of(number, chunk)]
        if self.blocks.blocks[number].cycle:
            ways += self.options.apart(number)
        rows = [self._row(priced) for priced in ways]
        return self._fitting(np.array(rows).reshape(len(rows), 6 + len(self.room)))

    def _row(self, priced: Priced) -> list[float]:
        used = self.rules.devices(priced)
        devices = [used.get(kind, 0) for kind in self.cluster.types]
        return [*map(float, self.rules.times(priced)), priced.kept, priced.loaded, *devices]

    def _joined(self, mask: int) -> Iterator[Rows]:
        kinds: tuple[Kind, ...] = ("time", "space")
        for first, second in self.blocks.cuts(mask):
            one, two = self._of(first), self._of(second)
            step = max(1, MOST // max(1, len(two)))
            for start in range(0, max(1, len(one)), step):
                for kind in kinds:
                    yield self._pairs(mask, (first, second), kind, one[start : start + step], two)

    def _pairs(self, mask: int, cut: tuple[int, int], kind: Kind, one: Rows, two: Rows) -> Rows:
        left, right = np.repeat(one, len(two), axis=0), np.tile(two, (len(one), 1))
        if kind == "time":
            has, other = left[:, 6:] > 0, right[:, 6:] > 0
            nested = (has <= other).all(axis=1) | (other <= has).all(axis=1)
            left, right = left[nested], right[nested]
            kept, used = left[:, 4] + right[:, 4], np.maximum(left[:, 6:], right[:, 6:])
        else:
            kept, used = np.maximum(left[:, 4], right[:, 4]), left[:, 6:] + right[:, 6:]
        first, second = Times(*left[:, :4].T), Times(*right[:, :4].T)
        times = self.rules.seen(mask, self.rules.join(kind, self.rules.cut(*cut), first, second))
        loaded = np.maximum(left[:, 5], right[:, 5])
        return self._fitting(np.column_stack([*times, kept, loaded, used]))

    def _fitting(self, rows: Rows) -> Rows:
        return rows[(rows[:, 6:] <= self.room).all(axis=1) & (rows[:, 4] + rows[:, 5] <= GRAIN)]


def fastest(problem: Problem) -> float:
    """Seconds of the fastest of all plans of all chunk sizes; infinite where none fits."""
    blocks = contract(problem[0])
    chunks = chunk_sizes(problem[0].samples, blocks.quantum, bool(blocks.streams))
    return min(EveryPlan(problem, chunk).fastest() for chunk in chunks)


def random_problem(seed: int) -> Problem:
    """2 to 5 components on 2 to 8 devices; more of the one, fewer of the other."""
    draw = random.Random(seed)
    parts = draw.choice([2, 3, 3, 4, 4, 5, 5])
    names = [f"part{number}" for number in range(parts)]
    types = ("fast", "slow") if parts < 5 and draw.random() < 0.3 else ("fast",)
    devices = draw.randint(2, {2: 8, 3: 8, 4: 8, 5: 7}[parts])
    cycles = ((names[0], names[1]),) if parts > 2 and draw.random() < 0.4 else ()
    sizes = ((1, 2) if devices >= 4 and parts < 4 and draw.random() < 0.2 else (1,),)
    components = tuple(Component(name, *sizes, lockstep=draw.random() < 0.3) for name in names)
    graph = Graph(
        components,
        tuple(_edges(draw, names)),
        samples=draw.choice([4, 6, 8, 12]),
        cycles=cycles,
        syncs=((names[-1], names[0]),) if draw.random() < 0.5 else (),
        rounds=draw.choice([1, 5]),
    )
    tight = draw.random() < 0.5
    memory = {name: MemoryUse(*_memory(draw)) for name in names} if tight else {}
    curves = tuple(WrittenCurve(name, _law(draw), kind) for name in names for kind in types)
    profile = Profile(
        memory=memory,
        curves=curves,
        sample_bytes={name: draw.choice([0.0, 1e8]) for name in names},
        weight_bytes={names[-1]: draw.choice([0.0, 1e9])},
        sync_shared_s=draw.choice([0.0, 0.1]),
        sync_apart_s=draw.choice([0.0, 0.5]),
    )
    counts = [devices] if len(types) == 1 else [devices - devices // 2, devices // 2]
    nodes = tuple(Node(count, kind, 10.0) for count, kind in zip(counts, types, strict=True))
    return graph, profile, Cluster(nodes)


def _edges(draw: random.Random, names: list[str]) -> Iterator[Edge]:
    for number, name in enumerate(names[1:], 1):
        sources = draw.sample(names[:number], draw.randint(1, min(2, number)))
        for source in sources:
            yield Edge(source, name, barrier=draw.random() < 0.3, quantum=draw.choice([1, 1, 2]))


def _law(draw: random.Random) -> Coefficients:
    return Coefficients(
        draw.choice([0.0, draw.uniform(0, 3)]),
        draw.uniform(0.05, 2.0),
        draw.choice([0.0, draw.uniform(0, 0.5)]),
        draw.choice([0.0, draw.uniform(0, 1)]),
    )


def _memory(draw: random.Random) -> tuple[float, float, float, float, float]:
    return (
        draw.uniform(0, 5),
        draw.uniform(0, 8),
        draw.choice([0.0, 0.5]),
        draw.uniform(0, 1),
        draw.uniform(0, 1),
    )
