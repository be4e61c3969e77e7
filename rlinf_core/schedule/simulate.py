"""What a plan does step by step: chunks travel, devices take turns, barriers and switches hold them up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rlinf_core.comm.spans import SpanKind
from rlinf_core.schedule.blocks import Block, Blocks, contract
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.turns import turns
from rlinf_core.schedule.waves import Wave, cut, merged, steps

MOST_ROUNDS = 50  # of a cycle that are played out; more are lumped together


@dataclass(frozen=True)
class PlannedSpan:
    """Time of a component on all of its devices."""

    component: str
    kind: SpanKind
    start: float
    end: float
    samples: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Simulation:
    """One step of a plan, from the weight copy to the end of the last component; where some work ahead, they
    work on the samples of a later step."""

    step_s: float
    spans: tuple[PlannedSpan, ...]
    busy_s: Mapping[str, float]  # component -> seconds of work of its slowest rank
    bubble_ratio: float  # idle share of the time of the devices used

    def timeline(self, device: int) -> list[PlannedSpan]:
        """What one device does, in order."""
        found = [span for span in self.spans if device in span.devices]
        return sorted(found, key=lambda span: (span.start, span.end))

    def seconds(self, kind: SpanKind) -> float:
        """Seconds of a kind, added up over components."""
        return sum(span.end - span.start for span in self.spans if span.kind == kind)


def simulate(plan: Plan, graph: Graph, cost: CostModel) -> Simulation:
    """Play one step of a plan."""
    run = _Run(plan, graph, cost, contract(graph))
    return run.play()


@dataclass
class _Run:
    plan: Plan
    graph: Graph
    cost: CostModel
    blocks: Blocks
    spans: list[PlannedSpan] = field(default_factory=list)
    out: dict[str, list[Wave]] = field(default_factory=dict)  # component -> what it has yielded when
    busy: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)  # component -> when it has its weights

    def play(self) -> Simulation:
        self.free: npt.NDArray[np.float64] = np.zeros(self.cost.cluster.size)
        self._sync()
        by_name = {part.name: block for block in self.blocks.blocks for part in (*block.early, *block.late)}
        for part in self.graph.components:
            block = by_name.get(part.name)
            if block is None:
                self._beside(part)
            elif part is (*block.early, *block.late)[-1]:
                self._block(block)
        ends = [self.free.max(), *(waves[-1].at for waves in self.out.values() if waves)]
        step_s = float(max(ends)) + self.cost.profile.overhead_s
        return Simulation(step_s, tuple(self.spans), self.busy, self._bubble(step_s))

    def _sync(self) -> None:
        for source, target in self.graph.syncs:
            givers, takers = self._devices(source), self._devices(target)
            together = set(takers) <= set(givers)
            rate = 0.0 if together else self.cost.cluster.bandwidth(givers[:1], takers[:1])
            seconds = self.cost.sync_s(source, together, rate)
            both = tuple(dict.fromkeys((*givers, *takers)))
            start = self._free(both)
            self._occupy(target, "transfer", start, start + seconds, 0, both)
            self.ready[target] = start + seconds

    def _beside(self, part: Component) -> None:
        """A component without devices takes samples as they come."""
        samples = self.graph.samples
        total = self.cost.beside_s(part.name, samples)
        self.busy[part.name] = total
        waves, now, before = [], 0.0, 0
        for wave in self._arrivals((part.name,), ()):
            start = max(now, wave.at)
            now = start + total * (wave.total - before) / samples
            self.spans.append(PlannedSpan(part.name, "run", start, now, wave.total - before, ()))
            waves.append(Wave(wave.total, now))
            before = wave.total
        self.out[part.name] = waves

    def _block(self, block: Block) -> None:
        devices = self._all_devices(block)
        start = max(
            self._free(devices), max(self.ready.get(part.name, 0.0) for part in (*block.early, *block.late))
        )
        leaving = [part for part in (*block.early, *block.late) if not self._seat(part.name).resident]
        for part in leaving:
            start = self._load(part.name, start, self.cost.memory_use(part.name).onload_s)
        if block.cycle:
            self._cycle(block, start)
        else:
            self._stages(block, start)
        for part in leaving:
            end = self._free(self._devices(part.name))
            self._load(part.name, end, self.cost.memory_use(part.name).offload_s)

    def _load(self, name: str, start: float, seconds: float) -> float:
        if seconds:
            self._occupy(name, "load", start, start + seconds, 0, self._devices(name))
        return start + seconds

    def _stages(self, block: Block, start: float) -> None:
        now, devices = start, self._devices(block.members[0].name)
        if block.early:
            now = self._early(block, now, devices)
        for part in block.late:
            now = max(now, self._arrivals((part.name,), devices)[-1].at)
            chunk = self._seat(part.name).chunk if part is block.late[-1] else 0
            self.out[part.name] = self._work([part], cut(self.graph.samples, chunk, now), now, devices)
            now = self.out[part.name][-1].at

    def _early(self, block: Block, now: float, devices: tuple[int, ...]) -> float:
        """All early components work on a wave before the next one."""
        names = tuple(part.name for part in block.early)
        chunk = self._seat(block.members[0].name).chunk
        arrivals = self._arrivals(names, devices)
        if len(arrivals) == 1:
            arrivals = cut(self.graph.samples, chunk, arrivals[0].at)
        waves = self._work(block.early, arrivals, now, devices)
        ended = waves[-1].at
        for part in block.early:
            self.out[part.name] = waves if chunk else [Wave(self.graph.samples, ended)]
        return ended

    def _work(
        self, parts: Sequence[Component], arrivals: Sequence[Wave], now: float, devices: tuple[int, ...]
    ) -> list[Wave]:
        samples = self.graph.samples
        largest = max(two.total - one for one, two in steps(arrivals))
        totals = {part.name: self._seconds(part.name, 0 if len(arrivals) == 1 else largest) for part in parts}
        self.busy.update(totals)
        waves = []
        for before, wave in steps(arrivals):
            now = max(now, wave.at)
            for name, total in totals.items():
                end = now + total * (wave.total - before) / samples
                self._occupy(name, "run", now, end, wave.total - before, devices)
                now = end
            waves.append(Wave(wave.total, now))
        return waves

    def _cycle(self, block: Block, start: float) -> None:
        names = tuple(part.name for part in block.late)
        start = max(start, self._arrivals(names, self._all_devices(block))[-1].at)
        sets = [frozenset(self._devices(member.name)) for member in block.members]
        if len(set(sets)) == 1:
            end = start
            for part in block.late:
                end = self._turn(part.name, end, self._seconds(part.name, 0))
        else:
            end = self._apart(block, start)
        for part in block.late:
            self.out[part.name] = [Wave(self.graph.samples, end)]

    def _turn(self, name: str, start: float, seconds: float) -> float:
        self.busy[name] = seconds
        self._occupy(name, "run", start, start + seconds, self.graph.samples, self._devices(name))
        return start + seconds

    def _apart(self, block: Block, start: float) -> float:
        stages = self.plan.stages
        totals = []
        for member in block.members:
            party = [part for part in block.late if member.name in (part.name, part.with_)]
            each = [self._seconds(part.name, 0, stages) for part in party]
            self.busy.update({part.name: one for part, one in zip(party, each, strict=True)})
            totals.append(sum(each))
        rounds = max(1, self.graph.rounds)
        played = min(rounds, MOST_ROUNDS)
        latency = self.cost.cluster.latency_s * rounds / played
        end = start
        for turn in turns(totals, stages, played, latency):
            name = block.members[turn.member].name
            devices = self._devices(name)
            done = math.ceil(self.graph.samples / stages) if turn.last else 0
            self._occupy(name, "run", start + turn.start, start + turn.end, done, devices)
            end = max(end, start + turn.end)
        return end

    def _arrivals(self, names: tuple[str, ...], devices: tuple[int, ...]) -> list[Wave]:
        """When the input of some components is there, but for what they give each other."""
        inputs = [
            self._sent(edge, devices)
            for edge in self.graph.edges
            if edge.target in names and edge.source not in names
        ]
        return merged(inputs) if inputs else [Wave(self.graph.samples, 0.0)]

    def _sent(self, edge: Edge, devices: tuple[int, ...]) -> list[Wave]:
        waves = self.out[edge.source]
        if edge.ahead and self._apart_ahead:
            waves = [Wave(self.graph.samples, 0.0)]
        origin = self._origin(edge.source)
        if devices and not set(devices) & set(self._devices(origin)):
            waves = self._transferred(origin, waves, devices)
        return waves[-1:] if edge.barrier else waves

    @cached_property
    def _apart_ahead(self) -> bool:
        """Whether those that work ahead share no device with the others; otherwise all take turns."""
        ahead = self.graph.ahead
        sets: list[set[int]] = [set(), set()]
        for part in self.graph.placed:
            sets[part.name in ahead].update(self._devices(part.name))
        return not sets[0] & sets[1]

    def _transferred(self, origin: str, waves: Sequence[Wave], devices: tuple[int, ...]) -> list[Wave]:
        rate = self.cost.bandwidth(self._devices(origin), devices)
        arrived, now = [], 0.0
        for before, wave in steps(waves):
            now = max(now, wave.at) + self.cost.transfer_s(origin, wave.total - before, 1, rate)
            arrived.append(Wave(wave.total, now))
        return arrived

    def _origin(self, name: str) -> str:
        """The component with devices that samples come from."""
        while not self.graph.component(name).on_devices:
            name = next(edge.source for edge in self.graph.edges if edge.target == name)
        return name

    def _seat(self, name: str) -> Assignment:
        return self.plan.assignments[self.graph.component(name).with_ or name]

    def _devices(self, name: str) -> tuple[int, ...]:
        return self._seat(name).devices

    def _all_devices(self, block: Block) -> tuple[int, ...]:
        return tuple(dict.fromkeys(d for part in block.members for d in self._devices(part.name)))

    def _seconds(self, name: str, wave: int, stages: int = 1) -> float:
        seat = self._seat(name)
        ranks = len(seat.devices) // seat.model_parallel
        chunk = math.ceil(wave / ranks)
        if stages > 1:
            chunk = math.ceil(math.ceil(self.graph.samples / ranks) / stages)
        kinds = self.cost.kinds_of(seat.devices)
        return max(
            self.cost.seconds(name, kind, len(seat.devices), self.graph.samples, chunk, seat.model_parallel)
            for kind in kinds
        )

    def _free(self, devices: tuple[int, ...]) -> float:
        return float(self.free[list(devices)].max(initial=0.0))

    def _occupy(
        self, name: str, kind: SpanKind, start: float, end: float, samples: int, devices: tuple[int, ...]
    ) -> None:
        self.spans.append(PlannedSpan(name, kind, start, end, samples, devices))
        places = list(devices)
        self.free[places] = np.maximum(self.free[places], end)

    def _bubble(self, step_s: float) -> float:
        used = {device for part in self.plan.assignments.values() for device in part.devices}
        busy = sum((span.end - span.start) * len(span.devices) for span in self.spans)
        return max(0.0, 1 - busy / (len(used) * step_s)) if step_s else 0.0
