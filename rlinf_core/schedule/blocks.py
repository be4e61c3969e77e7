"""The graph as the search sees it: cycles contracted, followers with their hosts, what has no device
folded into the links."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from rlinf_core.schedule.graph import Component, Edge, Graph


@dataclass(frozen=True)
class Block:
    """What the search places as one: a component, or a cycle, with those that follow it.

    `early` are its components that take samples as they come, `late` those that stand behind a barrier.
    """

    members: tuple[Component, ...]
    early: tuple[Component, ...]
    late: tuple[Component, ...]

    @property
    def cycle(self) -> bool:
        """Whether its members talk to each other."""
        return len(self.members) > 1

    @property
    def name(self) -> str:
        """Its members' names."""
        return "+".join(part.name for part in self.members)


@dataclass(frozen=True)
class Link:
    """Samples of one step from one block to another, by number; `beside` work on them on their way."""

    source: int
    target: int
    producer: str
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Blocks:
    """All blocks in flow order, and sets of them as bit masks."""

    graph: Graph
    blocks: tuple[Block, ...]
    links: tuple[Link, ...]
    syncs: tuple[tuple[int, int, str], ...]  # blocks of source and target, name of the source

    @property
    def all(self) -> int:
        """The mask of all blocks."""
        return (1 << len(self.blocks)) - 1

    @cached_property
    def quantum(self) -> int:
        """Samples that a chunk is a multiple of."""
        return math.lcm(1, *(edge.quantum for edge in self.graph.edges))

    @cached_property
    def streams(self) -> frozenset[int]:
        """Blocks that could give or take samples before their producers' end."""
        pairs = [
            (link.source, link.target)
            for link in self.links
            if self.blocks[link.target].early and not self.blocks[link.source].cycle
        ]
        return frozenset(number for pair in pairs for number in pair)

    def around(self, mask: int) -> list[tuple[int, int]]:
        """Blocks that samples come from to a set with blocks that they go to from it, 0 where there is
        none; as sets."""
        if mask not in self._around:
            outside = [1 << number for number in range(len(self.blocks)) if not mask >> number & 1]
            before = [one for one in outside if self.reach(one, mask)] or [0]
            after = [one for one in outside if self.reach(mask, one)] or [0]
            self._around[mask] = [pair for pair in itertools.product(before, after) if pair != (0, 0)]
        return self._around[mask]

    @cached_property
    def _around(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    def gives(self, mask: int) -> bool:
        """Whether a set has links to blocks outside."""
        return any(mask >> link.source & 1 and not mask >> link.target & 1 for link in self.links)

    def takes(self, mask: int) -> bool:
        """Whether a set has links from blocks outside."""
        return any(mask >> link.target & 1 and not mask >> link.source & 1 for link in self.links)

    @cached_property
    def reaches(self) -> list[int]:
        """For every block the set of those that links lead to from it, one after the other."""
        found = [1 << number for number in range(len(self.blocks))]
        for _ in self.blocks:
            for link in self.links:
                found[link.source] |= found[link.target]
        return found

    def reach(self, first: int, second: int) -> bool:
        """Whether links lead from one set to another."""
        return any(first >> number & 1 and reached & second for number, reached in enumerate(self.reaches))

    def cuts(self, mask: int) -> list[tuple[int, int]]:
        """All ways to cut a set in two so that no link points from the second part to the first.

        Where no link crosses, the order is that of the flow: the first part has the first block.
        """
        if mask not in self._cuts:
            self._cuts[mask] = self._all_cuts(mask)
        return self._cuts[mask]

    @cached_property
    def _cuts(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    def _all_cuts(self, mask: int) -> list[tuple[int, int]]:
        lowest = mask & -mask
        found = []
        part = (mask - 1) & mask
        while part:
            rest = mask & ~part
            if not self.crossing(rest, part) and (part & lowest or self.crossing(part, rest)):
                found.append((part, rest))
            part = (part - 1) & mask
        return found

    def crossing(self, first: int, second: int) -> list[Link]:
        """Links from one set to another."""
        return [link for link in self.links if first >> link.source & 1 and second >> link.target & 1]

    @cached_property
    def masks(self) -> list[int]:
        """The sets that repeated cuts can give, smaller ones first."""
        found = {self.all}
        waiting = [self.all]
        while waiting:
            new = {part for cut in self.cuts(waiting.pop()) for part in cut} - found
            found |= new
            waiting += new
        return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def contract(graph: Graph) -> Blocks:
    """The blocks of a graph."""
    members = list(dict.fromkeys(graph.cycle_of(part.name) for part in graph.placed))
    place = {name: number for number, names in enumerate(members) for name in names}
    for part in graph.components:
        if part.with_:
            place[part.name] = place[part.with_]
    links = [
        Link(place[source], place[edge.target], source, beside)
        for edge in graph.edges
        if edge.target in place and not edge.ahead
        for source, beside in _origins(graph, edge, place)
        if place[source] != place[edge.target]
    ]
    blocks = tuple(_block(graph, names, place) for names in members)
    syncs = [(place[a], place[b], a) for a, b in graph.syncs if a in place and b in place]
    apart = tuple((source, target, name) for source, target, name in syncs if source != target)
    return Blocks(graph, blocks, tuple(dict.fromkeys(links)), apart)


def _origins(graph: Graph, edge: Edge, place: dict[str, int]) -> list[tuple[str, tuple[str, ...]]]:
    """Where an edge's samples come from, past components without devices, and which these are."""
    if edge.source in place:
        return [(edge.source, ())]
    return [
        (origin, (*beside, edge.source))
        for before in graph.edges
        if before.target == edge.source
        for origin, beside in _origins(graph, before, place)
    ]


def _block(graph: Graph, names: tuple[str, ...], place: dict[str, int]) -> Block:
    number = place[names[0]]
    parts = [part for part in graph.components if place.get(part.name) == number]
    waits = [_waits(graph, part.name, place) for part in parts]
    first = waits.index(True) if True in waits else len(parts)
    if len(names) > 1:
        first = 0
    members = tuple(graph.component(name) for name in names)
    return Block(members, tuple(parts[:first]), tuple(parts[first:]))


def _waits(graph: Graph, name: str, place: dict[str, int]) -> bool:
    """Whether a barrier stands before a component, or before one without devices that it takes from."""
    return any(
        edge.barrier or (edge.source not in place and _waits(graph, edge.source, place))
        for edge in graph.edges
        if edge.target == name
    )
