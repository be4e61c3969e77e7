"""What one block can be given: numbers of devices, types, model-parallel sizes, residency, stages."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rlinf_core.schedule.blocks import Block, Blocks
from rlinf_core.schedule.choices import Held, Option, Priced, Seat
from rlinf_core.schedule.cost import GRAIN, CostModel
from rlinf_core.schedule.counts import first_of_each, refined
from rlinf_core.schedule.graph import Component

DENSE = 64  # up to so many devices every number is looked at, beyond only those where a cost changes
STAGES = (1, 2, 3, 4)

Times = TypeVar("Times", float, npt.NDArray[np.float64])


class Options:
    """All options of all blocks. Up to `dense` devices every number is one; beyond, those where a cost
    changes."""

    def __init__(self, blocks: Blocks, cost: CostModel, dense: int = DENSE) -> None:
        self.blocks = blocks
        self.cost = cost
        self.samples = blocks.graph.samples
        self.dense = dense
        self.roomy = self._all_fit()
        self._counts: dict[tuple[int, str, int], tuple[int, ...]] = {}
        for block in blocks.blocks:
            for member in block.members:
                cost.require(self.party(block, member))
        self._ways: dict[tuple[int, str, int], list[Held]] = {}

    def of(self, number: int, chunk: int) -> Iterator[Priced]:
        """Options of one block with chunks of so many samples (0 = all at once)."""
        block = self.blocks.blocks[number]
        if not block.cycle:
            yield from self._single(number, block, chunk)
        elif not chunk:
            yield from self._together(number, block)

    def apart(self, number: int) -> Iterator[Priced]:
        """Options of a cycle whose members have seats of their own."""
        block = self.blocks.blocks[number]
        for seats in itertools.product(*(self.seats(number, member) for member in block.members)):
            if self._too_many(seats):
                continue
            for stages in self.stages(seats):
                total = self.turns_s(self.parties_s(block, seats, stages), stages)
                yield from self._held_ways(Option(number, seats, 0, (), stages), block, total)

    def exactly(self, number: int, kind: str, count: int) -> Iterator[Priced]:
        """Options on one number of devices that all members of a block share."""
        for seat in self.exact_seats(number, kind, count):
            yield from self._shared(number, self.blocks.blocks[number], seat)

    def exact_seats(self, number: int, kind: str, count: int) -> list[Seat]:
        """Seats of a number of devices that all members of a block can share."""
        block = self.blocks.blocks[number]
        if kind not in self.cost.types_of((*block.early, *block.late)):
            return []
        if count > min(self.most(member, kind) for member in block.members):
            return []
        return [Seat(kind, count, size) for size in self._sizes(block) if count % size == 0]

    def seated_s(self, number: int, seat: Seat) -> float:
        """A block's time on one seat, all samples at once."""
        block = self.blocks.blocks[number]
        return sum(self.seconds(part.name, seat, 0) for part in (*block.early, *block.late))

    def all_counts(self, number: int, device_type: str) -> set[int]:
        """`counts` for all model-parallel sizes that the members share; none for a type not known."""
        block = self.blocks.blocks[number]
        if device_type not in self.cost.types_of((*block.early, *block.late)):
            return set()
        return {count for size in self._sizes(block) for count in self.counts(number, device_type, size)}

    def counts(self, number: int, device_type: str, size: int) -> tuple[int, ...]:
        """Numbers of devices worth looking at, multiples of a model-parallel size."""
        key = (number, device_type, size)
        if key not in self._counts:
            ranks = self._ranks(self.blocks.blocks[number], device_type, size)
            self._counts[key] = tuple(size * count for count in ranks)
        return self._counts[key]

    def _ranks(self, block: Block, device_type: str, size: int) -> list[int]:
        most = self.cost.count(device_type) // size
        if most <= self.dense:
            return list(range(1, most + 1))
        parts = [part for part in (*block.early, *block.late) if device_type in self.cost.types_of([part])]
        ranks = np.arange(1, most + 1)
        starts = {*range(1, self.dense + 1), most, *first_of_each(np.ceil(self.samples / ranks))}
        for part in () if self.roomy else parts:
            use = self.cost.memory_use(part.name)
            held = (use.fixed_bytes + use.sharded_bytes / (ranks * size)) / self.cost.memory_of(device_type)
            starts.update(first_of_each(np.ceil(held * GRAIN - 1e-9)))

        def seconds(ranks: int) -> float:
            seat = Seat(device_type, ranks * size, size)
            return sum(self.seconds(part.name, seat, 0) for part in parts)

        return refined(sorted(starts), seconds)

    def _single(self, number: int, block: Block, chunk: int) -> Iterator[Priced]:
        (member,) = block.members
        for kind in self.cost.types_of((*block.early, *block.late)):
            for size in member.parallel_sizes:
                for count in self.counts(number, kind, size):
                    if count <= self.most(member, kind):
                        yield from self._seated(number, block, Seat(kind, count, size), chunk)

    def _seated(self, number: int, block: Block, seat: Seat, chunk: int) -> Iterator[Priced]:
        (member,) = block.members
        if chunk and not self.fills(member, seat.ranks, chunk):
            return
        early = sum(self.seconds(part.name, seat, chunk) for part in block.early)
        late = sum(self.seconds(part.name, seat, chunk) for part in block.late)
        for resident, held in self._held_alone(number, member, seat):
            option = Option(number, (seat,), chunk, resident)
            yield Priced(option, early, late, held.switch, held.kept, held.loaded)

    def _held_alone(
        self, number: int, member: Component, seat: Seat
    ) -> Iterable[tuple[tuple[bool, ...], Held]]:
        key = (number, seat.device_type, seat.devices)
        if key not in self._ways:
            block = self.blocks.blocks[number]
            self._ways[key] = [self.held(block, member, seat, stays) for (stays,) in self.residency(1)]
        return zip(self.residency(1), self._ways[key], strict=True)

    def _sizes(self, block: Block) -> list[int]:
        return sorted(set.intersection(*(set(member.parallel_sizes) for member in block.members)))

    def _together(self, number: int, block: Block) -> Iterator[Priced]:
        for kind in self.cost.types_of(block.late):
            most = min(self.most(member, kind) for member in block.members)
            for size in self._sizes(block):
                for count in self.counts(number, kind, size):
                    if count <= most:
                        yield from self._shared(number, block, Seat(kind, count, size))

    def _shared(self, number: int, block: Block, seat: Seat) -> Iterator[Priced]:
        if not block.cycle:
            yield from self._seated(number, block, seat, 0)
            return
        total = sum(self.seconds(part.name, seat, 0) for part in block.late)
        yield from self._held_ways(Option(number, (seat,), 0, ()), block, total)

    def stages(self, seats: tuple[Seat, ...]) -> list[int]:
        """Numbers of groups that every rank has samples for."""
        least = math.ceil(self.samples / max(seat.ranks for seat in seats))
        return [stages for stages in STAGES if stages <= least]

    def seats(self, number: int, member: Component) -> list[Seat]:
        """Seats that a member of a cycle can have."""
        block = self.blocks.blocks[number]
        return [
            Seat(kind, count, size)
            for kind in self.cost.types_of(self.party(block, member))
            for size in member.parallel_sizes
            for count in self.counts(number, kind, size)
            if count <= self.most(member, kind)
        ]

    def _too_many(self, seats: tuple[Seat, ...]) -> bool:
        used: dict[str, int] = {}
        for seat in seats:
            used[seat.device_type] = used.get(seat.device_type, 0) + seat.devices
        return any(count > self.cost.count(kind) for kind, count in used.items())

    def party(self, block: Block, member: Component) -> tuple[Component, ...]:
        """A member and those that follow it."""
        parts = (*block.early, *block.late)
        return tuple(part for part in parts if member.name in (part.name, part.with_))

    def party_s(self, block: Block, member: Component, seat: Seat, stages: int) -> float:
        """A member's time (and its followers') on a seat, called once for each group."""
        chunk = math.ceil(math.ceil(self.samples / seat.ranks) / stages) if stages > 1 else 0
        return sum(self.seconds(part.name, seat, 0, chunk) for part in self.party(block, member))

    def parties_s(self, block: Block, seats: tuple[Seat, ...], stages: int) -> list[float]:
        """`party_s` of all members."""
        pairs = zip(block.members, seats, strict=True)
        return [self.party_s(block, member, seat, stages) for member, seat in pairs]

    def turns_s(self, each: Sequence[Times], stages: int) -> Times:
        """A cycle's time where its members (`each` so many seconds) sit apart: with one group they take
        turns; with more, the slowest works all the time but for the others' first turn, unless a group's
        way round takes longer."""
        rounds = max(1, self.blocks.graph.rounds)
        messages = len(each) * rounds * self.cost.cluster.latency_s
        total = sum(each[1:], each[0])
        if stages == 1:
            return total + messages
        slowest: Times = functools.reduce(np.maximum, each)
        whole: Times = np.maximum(slowest, total / stages + messages)
        return whole + (total - slowest) / (stages * rounds)

    def _held_ways(self, option: Option, block: Block, total: float) -> Iterator[Priced]:
        together = len(option.seats) == 1
        seats = option.seats * (len(block.members) // len(option.seats))
        alone = [
            {stays: self.held(block, member, seat, stays) for (stays,) in self.residency(1)}
            for member, seat in zip(block.members, seats, strict=True)
        ]
        for resident in self.residency(len(block.members)):
            held = [ways[stays] for ways, stays in zip(alone, resident, strict=True)]
            join = sum if together else max
            kept, loaded = join(one.kept for one in held), join(one.loaded for one in held)
            way = Option(option.block, option.seats, 0, resident, option.stages)
            yield Priced(way, 0.0, total, sum(one.switch for one in held), kept, loaded)

    def residency(self, members: int) -> list[tuple[bool, ...]]:
        """Which of so many members stay on their devices: all ways, or one where memory plays no part."""
        return [(True,) * members] if self.roomy else list(itertools.product((True, False), repeat=members))

    def held(self, block: Block, member: Component, seat: Seat, stays: bool) -> Held:
        """Memory of one member, with its followers."""
        if self.roomy:
            return Held(0.0, 0, 0)
        party, kind = self.party(block, member), seat.device_type
        units = sum(self.cost.units(self.cost.memory(part.name, seat.devices), kind) for part in party)
        if stays:
            return Held(0.0, units, 0)
        left = [self.cost.memory_use(part.name).offloaded_bytes for part in party]
        off = min(units, sum(self.cost.units(one, kind) for one in left))
        return Held(sum(self.cost.switch_s(part.name) for part in party), off, units - off)

    def seconds(self, name: str, seat: Seat, chunk: int, call: int = 0) -> float:
        """A component's time on a seat, with chunks over all ranks, or with calls on one rank."""
        call = call or (math.ceil(chunk / seat.ranks) if chunk else 0)
        return self.cost.seconds(
            name, seat.device_type, seat.devices, self.samples, call, seat.model_parallel
        )

    def fills(self, member: Component, ranks: int, chunk: int) -> bool:
        """Whether a chunk gives every rank something to do."""
        return chunk >= ranks * (1 if member.lockstep else self.blocks.quantum)

    def most(self, member: Component, device_type: str) -> int:
        """The largest number of devices that a component can have."""
        count = self.cost.count(device_type)
        return count if member.max_devices is None else min(count, member.max_devices)

    def _all_fit(self) -> bool:
        """Whether everything together fits on one device of each type: then memory plays no part."""
        return all(
            sum(
                self.cost.units(self.cost.memory(part.name, 1), kind) for part in self.blocks.graph.components
            )
            <= GRAIN
            for kind in self.cost.cluster.types
        )
