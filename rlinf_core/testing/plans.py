"""Random planning problems, and their best plans by trying everything: what the search must equal."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.schedule.algebra import Times
from rlinf_core.schedule.blocks import Blocks, contract
from rlinf_core.schedule.choices import Priced
from rlinf_core.schedule.cost import GRAIN, CostModel
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.dynamic import chunk_sizes
from rlinf_core.schedule.frontier import APART, SHARED
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.options import Options
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.tree import Rules


@dataclass(frozen=True)
class Problem:
    """What a plan is wanted for."""

    graph: Graph
    profile: Profile
    cluster: Cluster


def random_problem(seed: int, components: int, devices: int, plain: bool = False) -> Problem:
    """A graph with some barriers and cycles, on one or two types of device, with or without memory that
    matters. A `plain` one has a barrier at every edge and much memory."""
    draw = random.Random(seed)
    names = [f"c{number}" for number in range(components)]
    cycle = components > 1 and draw.random() < 0.4
    parts = tuple(
        Component(
            name,
            parallel_sizes=draw.choice([(1,), (1,), (1, 2)]),
            max_devices=draw.choice([None, None, 3]),
            lockstep=draw.random() < 0.4,
        )
        for name in names
    )
    cut = 2 if cycle else 1
    edges = [
        Edge(one, two, plain or draw.random() < 0.3, draw.choice([1, 2]))
        for one, two in itertools.combinations(names, 2)
        if names.index(two) >= cut and (one, two) != ("c0", "c1" if cycle else "")
        if draw.random() < (0.8 if names.index(two) == names.index(one) + 1 else 0.3)
    ]
    types = draw.choice([("fast",), ("fast", "slow")]) if devices > 1 else ("fast",)
    return Problem(
        Graph(
            parts,
            tuple(edges),
            draw.choice([4, 12, 16, 30]),
            cycles=((names[0], names[1]),) if cycle else (),
            syncs=((names[-1], names[0]),) if components > 1 else (),
            rounds=5,
        ),
        _profile(draw, names, types, tight=not plain and draw.random() < 0.6),
        _cluster(draw, devices, types),
    )


def _profile(draw: random.Random, names: list[str], types: tuple[str, ...], tight: bool) -> Profile:
    curves = []
    for name in names:
        law = Coefficients(
            draw.choice([0.0, draw.random()]),
            draw.random(),
            draw.choice([0.0, 0.1 * draw.random()]),
            draw.choice([0.0, draw.random()]),
        )
        for kind in types if draw.random() < 0.8 else types[:1]:
            curves.append(WrittenCurve(name, law.scaled(1.0 if kind == "fast" else 1.7), kind))
    return Profile(
        curves=tuple(curves),
        memory={
            name: MemoryUse(
                draw.choice([4e8, 8e8]) * draw.random(),
                draw.choice([8e8, 2e9]) * draw.random(),
                1e8 * draw.choice([0.0, draw.random()]),
                0.2 * draw.random(),
                0.2 * draw.random(),
            )
            for name in names
            if tight
        },
        sample_bytes={name: 1e6 * draw.random() for name in names},
        weight_bytes={name: 1e8 * draw.random() for name in names},
        sync_shared_s=0.1 * draw.random(),
        sync_apart_s=draw.random(),
    )


def _cluster(draw: random.Random, devices: int, types: tuple[str, ...]) -> Cluster:
    first = devices if len(types) == 1 else draw.randrange(1, devices)
    nodes = [Node(first, types[0], 1e9)]
    if first < devices:
        nodes.append(Node(devices - first, types[1], 8e8))
    return Cluster(tuple(nodes), 1e9, 3e8, 0.001)


def brute_force(problem: Problem, style: int | None = None) -> float:
    """Seconds of the best tree (of one style), from every tree with every option; infinite if nothing
    fits."""
    blocks = contract(problem.graph)
    cost = CostModel(problem.graph, problem.profile, problem.cluster)
    options = Options(blocks, cost, dense=problem.cluster.size)
    chunks = chunk_sizes(problem.graph.samples, blocks.quantum, bool(blocks.streams), fine=True)
    return min(_best(blocks, cost, options, chunk, style) for chunk in chunks)


@dataclass(frozen=True)
class _Ways:
    """All ways for a set of blocks, without any left out: times, devices, memory, style."""

    times: Times
    use: np.typing.NDArray[np.int64]
    kept: np.typing.NDArray[np.int64]
    loaded: np.typing.NDArray[np.int64]
    style: np.typing.NDArray[np.int64]


def _best(blocks: Blocks, cost: CostModel, options: Options, chunk: int, style: int | None) -> float:
    rules = Rules(blocks, cost, chunk)
    room = np.array([cost.cluster.count(kind) for kind in cost.cluster.types])
    found = [
        [
            *options.of(number, 0),
            *(options.of(number, chunk) if chunk and number in blocks.streams else ()),
            *(options.apart(number) if blocks.blocks[number].cycle else ()),
        ]
        for number in range(len(blocks.blocks))
    ]
    best = np.inf
    for ways in _shapes(rules, found, blocks.all):
        fits = (ways.use <= room).all(axis=1) & (ways.kept + ways.loaded <= GRAIN)
        if style is not None:
            fits &= ways.style == style
        best = min(best, float(ways.times.c[fits].min(initial=np.inf)))
    return best


def _shapes(rules: Rules, found: list[list[Priced]], mask: int) -> Iterator[_Ways]:
    """For every shape of tree over a set of blocks, all choices of options at once."""
    if mask.bit_count() == 1:
        yield _single(rules, found[mask.bit_length() - 1], mask)
        return
    for first, second in rules.blocks.cuts(mask):
        for one in _shapes(rules, found, first):
            for two in _shapes(rules, found, second):
                yield from _both(rules, mask, (first, second), one, two)


def _single(rules: Rules, options: list[Priced], mask: int) -> _Ways:
    types = rules.cost.cluster.types
    waits = bool(rules.blocks.blocks[mask.bit_length() - 1].late)
    rows = np.array([option.times(waits, rules.share) for option in options]).reshape(-1, 4)
    use = np.array(
        [
            [sum(seat.devices for seat in one.option.seats if seat.device_type == kind) for kind in types]
            for one in options
        ]
    ).reshape(-1, len(types))
    return _Ways(
        rules.seen(mask, Times(*rows.T)),
        use,
        np.array([one.kept for one in options], dtype=np.int64),
        np.array([one.loaded for one in options], dtype=np.int64),
        np.array([APART if len(one.option.seats) > 1 else 0 for one in options], dtype=np.int64),
    )


def _both(rules: Rules, mask: int, cut: tuple[int, int], one: _Ways, two: _Ways) -> Iterator[_Ways]:
    left, right = (part.ravel() for part in np.indices((len(one.kept), len(two.kept))))
    between = rules.cut(*cut)
    first = Times(*(column[left] for column in one.times))
    second = Times(*(column[right] for column in two.times))
    loaded = np.maximum(one.loaded[left], two.loaded[right])
    style = one.style[left] | two.style[right]
    apart = rules.seen(mask, rules.join("space", between, first, second))
    kept = np.maximum(one.kept[left], two.kept[right])
    yield _Ways(apart, one.use[left] + two.use[right], kept, loaded, style | APART)
    shared = rules.seen(mask, rules.join("time", between, first, second))
    has, other = one.use[left] > 0, two.use[right] > 0
    nested = (has <= other).all(axis=1) | (other <= has).all(axis=1)
    far = np.where(nested, 0, GRAIN + 1)  # parts on types of their own do not share devices
    use = np.maximum(one.use[left], two.use[right])
    uneven = (one.use[left] != two.use[right]).any(axis=1)
    style = style | SHARED | np.where(uneven, APART, 0)
    yield _Ways(shared, use, one.kept[left] + two.kept[right] + far, loaded, style)


def large_problem(devices: int, components: int = 3, two_types: bool = False, cycle: bool = False) -> Problem:
    """A job as one meets them on large clusters: nodes of eight devices with 80 GB each; with `cycle`, an
    environment and a policy; rollouts or what comes from them, models that judge them, training."""
    names = ["environment", "rollout"] if cycle else ["rollout"]
    names += ["reference", "critic", "reward_model"][: components - len(names) - 1]
    names.append("actor")
    parts = tuple(
        Component(name, parallel_sizes=(1, 2, 4) if name == "actor" else (1,), lockstep=name == "actor")
        for name in names
    )
    source = names.index("rollout")
    edges = [Edge("rollout", name, quantum=8) for name in names[source + 1 :]]
    edges += [Edge(name, "actor", quantum=8) for name in names[source + 1 : -1]]
    if cycle:
        edges.append(Edge("environment", "rollout"))
    graph = Graph(
        parts,
        tuple(edges),
        2 * devices,
        cycles=(("environment", "rollout"),) if cycle else (),
        syncs=(("actor", "rollout"),),
    )
    types = {"H100": 1.0, "A100": 2.1} if two_types else {"H100": 1.0}
    nodes = tuple(Node(8, kind, 80e9, kind) for kind in types for _ in range(devices // 8 // len(types)))
    return Problem(graph, _large_profile(names, types), Cluster(nodes, 4e11, 5e10, 1e-4))


def _large_profile(names: list[str], types: dict[str, float]) -> Profile:
    laws = {
        "environment": Coefficients(1.0, 1.5, 0.05),
        "rollout": Coefficients(6.0, 4.0, 0.4),
        "reference": Coefficients(0.1, 0.5, 0.02, 0.1),
        "critic": Coefficients(0.3, 1.1, 0.05, 0.4),
        "reward_model": Coefficients(0.1, 0.8, 0.03),
        "actor": Coefficients(0.5, 2.5, 0.1, 0.8),
    }
    memory = {
        "environment": MemoryUse(10e9, 0, 1e9, 0.5, 0.5),
        "rollout": MemoryUse(50e9, 0, 2e9, 0.8, 0.4),
        "reference": MemoryUse(3e9, 16e9, 1e9, 0.2, 0.2),
        "critic": MemoryUse(8e9, 120e9, 2e9, 0.7, 0.6),
        "reward_model": MemoryUse(18e9, 0, 1e9, 0.3, 0.3),
        "actor": MemoryUse(15e9, 140e9, 3e9, 0.9, 0.8),
    }
    return Profile(
        curves=tuple(
            WrittenCurve(name, laws[name].scaled(factor), kind)
            for name in names
            for kind, factor in types.items()
        ),
        memory={name: memory[name] for name in names},
        sample_bytes=dict.fromkeys(names, 2e5),
        weight_bytes={"actor": 1.4e10},
        sync_shared_s=0.2,
        sync_apart_s=0.5,
    )
