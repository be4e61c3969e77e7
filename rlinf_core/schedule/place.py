"""Trees become plans: every part gets devices by number, on as few nodes as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.choices import Option, Priced, Seat
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.tree import Rules, Tree, leaves

Pool = npt.NDArray[np.int64]  # free devices, rising


def plan_of(tree: Tree, rules: Rules, grown: bool = False) -> Plan:
    """A tree's plan; with `grown`, parts that share devices take all that are there for them."""
    placed = dict(_Placer(rules, grown).place(tree, np.arange(rules.cost.cluster.size)))
    stages = max(leaf.option.stages for leaf in leaves(tree))
    plan = Plan(placed, stages)
    graph, cost = rules.blocks.graph, rules.cost
    return settled(
        _chunked(plan, rules, {leaf.option.block: leaf.option for leaf in leaves(tree)}), graph, cost
    )


class _Placer:
    def __init__(self, rules: Rules, grown: bool) -> None:
        self.rules = rules
        self.grown = grown
        self.cluster = rules.cost.cluster
        self.node_of = rules.cost.nodes
        self.type_of = np.array([self.cluster.types.index(node.type) for node in self.cluster.nodes])[
            self.node_of
        ]

    def place(self, tree: Tree, pool: Pool) -> Iterator[tuple[str, Assignment]]:
        """Assignments of a tree's components, on devices of the pool."""
        if isinstance(tree, Priced):
            yield from self._seated(tree.option, pool)
            return
        if tree.kind == "time":
            shared = self.take(pool, self.rules.devices(tree))
            yield from self.place(tree.first, shared)
            yield from self.place(tree.second, shared)
            return
        first, second = tree.first, tree.second
        if len(self.cluster.nodes) > 1 and _count(self.rules, second) > _count(self.rules, first):
            first, second = second, first
        one = self.take(pool, self.rules.devices(first))
        rest = np.setdiff1d(pool, one, assume_unique=True)
        yield from self.place(first, one)
        yield from self.place(second, self.take(rest, self.rules.devices(second)))

    def _seated(self, option: Option, pool: Pool) -> Iterator[tuple[str, Assignment]]:
        block = self.rules.blocks.blocks[option.block]
        seats = option.seats * (len(block.members) // len(option.seats))
        devices: Pool = pool[:0]
        for member, seat, resident in zip(block.members, seats, option.resident, strict=True):
            if len(option.seats) > 1 or not len(devices):
                most = min(part.max_devices or len(pool) for part in block.members)
                devices = self._grow(seat, pool, most) if len(option.seats) == 1 else self._sit(seat, pool)
                pool = np.setdiff1d(pool, devices, assume_unique=True)
            yield (
                member.name,
                Assignment(tuple(devices.tolist()), option.chunk, resident, seat.model_parallel),
            )

    def _grow(self, seat: Seat, pool: Pool, most: int) -> Pool:
        alike = self._alike(pool, seat.device_type)
        count = min(len(alike), most) // seat.model_parallel * seat.model_parallel
        return alike[:count] if self.grown and count > seat.devices else self._sit(seat, pool)

    def _sit(self, seat: Seat, pool: Pool) -> Pool:
        return self.take(pool, {seat.device_type: seat.devices})

    def take(self, pool: Pool, counts: dict[str, int]) -> Pool:
        """So many devices of each type."""
        taken = [self._few_nodes(self._alike(pool, kind), count) for kind, count in counts.items()]
        return np.sort(np.concatenate(taken))

    def _alike(self, pool: Pool, kind: str) -> Pool:
        found: Pool = pool[self.type_of[pool] == self.cluster.types.index(kind)]
        return found

    def _few_nodes(self, pool: Pool, count: int) -> Pool:
        """In the emptiest node that has as many; else the first ones."""
        nodes, sizes = np.unique(self.node_of[pool], return_counts=True)
        enough = np.flatnonzero(sizes >= count)
        if not len(enough):
            return pool[:count]
        node = nodes[enough[sizes[enough].argmin()]]
        found: Pool = pool[self.node_of[pool] == node][:count]
        return found


def _count(rules: Rules, tree: Tree) -> int:
    return sum(rules.devices(tree).values())


def _chunked(plan: Plan, rules: Rules, options: dict[int, Option]) -> Plan:
    """Only components whose samples can be taken before their end yield chunks."""
    blocks, assignments = rules.blocks, dict(plan.assignments)
    streaming = set()
    for link in blocks.links:
        taker, giver = (blocks.blocks[number].members[0].name for number in (link.target, link.source))
        apart = not set(assignments[taker].devices) & set(assignments[giver].devices)
        takes = blocks.blocks[link.target].early and options[link.target].chunk
        if apart and takes and options[link.source].chunk:
            streaming.add(giver)
    return replace(
        plan,
        assignments={
            name: replace(part, chunk=part.chunk if name in streaming else 0)
            for name, part in assignments.items()
        },
    )


def fullest(plan: Plan, graph: Graph, cost: CostModel) -> tuple[float, float]:
    """Bytes on the fullest device, and the largest share of a device's memory that is used."""
    most, share = 0.0, 0.0
    for devices, names in _together(plan, cost):
        kept, loaded = 0.0, 0.0
        for cycle in dict.fromkeys(graph.cycle_of(name) for name in names):
            parts = [name for name in names if name in cycle]
            more = 0.0
            for name in parts:
                seat = plan.assignments[name]
                party = [part.name for part in graph.components if name in (part.name, part.with_)]
                held = sum(cost.memory(part, len(seat.devices)) for part in party)
                off = sum(cost.memory_use(part).offloaded_bytes for part in party)
                kept += held if seat.resident else min(held, off)
                more += 0.0 if seat.resident else held - min(held, off)
            loaded = max(loaded, more)
        room = cost.memory_of(cost.kinds_of(devices)[0])
        most, share = max(most, kept + loaded), max(share, (kept + loaded) / room)
    return most, share


def refuse_overfull(plan: Plan, graph: Graph, cost: CostModel) -> None:
    """Raises `ConfigError` for a plan whose components do not fit on their devices: who needs how much."""
    if fullest(plan, graph, cost)[1] <= 1.0:
        return
    for devices, names in _together(plan, cost):
        room = cost.memory_of(cost.kinds_of(devices)[0])
        needs = {name: cost.memory(name, len(plan.assignments[name].devices)) for name in names}
        if sum(needs.values()) > room:
            listed = ", ".join(f"{name} {size / 2**30:.3g} GiB" for name, size in needs.items())
            raise ConfigError(
                f"plan: {listed} do not fit on devices {as_ranges(devices)} with {room / 2**30:.3g} GiB "
                "each; give one of them more devices or devices of its own, or let it leave (resident: false)"
            )


def settled(plan: Plan, graph: Graph, cost: CostModel) -> Plan:
    """What need not leave its devices stays, the slowest to move first."""
    assignments = dict(plan.assignments)
    leaving = [name for name, part in assignments.items() if not part.resident]
    for name in sorted(leaving, key=cost.switch_s, reverse=True):
        stays = {**assignments, name: replace(assignments[name], resident=True)}
        if fullest(replace(plan, assignments=stays), graph, cost)[1] <= 1.0:
            assignments = stays
    return replace(plan, assignments=assignments)


def _together(plan: Plan, cost: CostModel) -> list[tuple[Sequence[int], list[str]]]:
    """Devices (one for each type) that the same components share."""
    marks: npt.NDArray[np.int64] = np.zeros(cost.cluster.size, dtype=np.int64)
    names = list(plan.assignments)
    for number, name in enumerate(names):
        marks[list(plan.assignments[name].devices)] |= 1 << number
    kinds = np.array([cost.cluster.types.index(node.type) for node in cost.cluster.nodes])[cost.nodes]
    _, first = np.unique(marks * len(cost.cluster.types) + kinds, return_index=True)
    return [
        ([int(device)], [name for number, name in enumerate(names) if marks[device] >> number & 1])
        for device in first
        if marks[device]
    ]
