"""From the spans of a step to what each component took: the measurements that planning is based on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rlinf_core.api.spans import HostSpan, Span
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import Measurement


def own_seconds(spans: Iterable[HostSpan], began: float, ended: float) -> dict[str, float]:
    """Seconds that each worker itself ran within a window of the monotonic clock.

    A host does one thing at a time and its spans nest: time belongs to the innermost span, and what a
    worker waited for is nobody's.
    """
    hosts: dict[str, list[Span]] = defaultdict(list)
    for one in spans:
        hosts[one.host].append(one.span)
    seconds: dict[str, float] = defaultdict(float)
    for found in hosts.values():
        for span, alone in _exclusive(found, began, ended):
            if span.kind == "run":
                seconds[span.worker] += alone
    return dict(seconds)


def measurements(
    spans: Iterable[HostSpan], plan: Plan, graph: Graph, began: float, ended: float, device_type: str
) -> tuple[Measurement, ...]:
    """One for each component that ran: its slowest rank."""
    seconds = own_seconds(spans, began, ended)
    slowest: dict[str, float] = defaultdict(float)
    for worker, time_s in seconds.items():
        name = worker.partition("[")[0]
        slowest[name] = max(slowest[name], time_s)
    return tuple(
        Measurement(
            component=part.name,
            devices=len(_devices(plan, graph, part.name)),
            samples=graph.samples,
            seconds=slowest[part.name],
            chunk=_chunk(plan, graph, part.name),
            device_type=device_type,
        )
        for part in graph.components
        if slowest[part.name] > 0.0
    )


def _devices(plan: Plan, graph: Graph, name: str) -> Sequence[int]:
    part = graph.component(name)
    seat = plan.assignments.get(part.with_ or name)
    return (0,) if seat is None else seat.devices


def _chunk(plan: Plan, graph: Graph, name: str) -> int:
    """Samples of one call on one rank, where that is not simply all of them."""
    cycle = graph.cycle_of(name)
    if len(cycle) > 1 and plan.stages > 1:
        return -(-graph.samples // (len(plan.assignments[name].devices) * plan.stages))
    streams = [plan.assignments[edge.source].chunk for edge in graph.edges if edge.source in plan.assignments]
    arriving = max(streams, default=0)
    if arriving and graph.component(name).lockstep:
        return -(-arriving // len(_devices(plan, graph, name)))
    return 0


def _exclusive(spans: list[Span], began: float, ended: float) -> Iterator[tuple[Span, float]]:
    """Each span with the time in which no span inside it ran, within the window."""
    stack: list[tuple[Span, float, float]] = []  # span, its part of the window, that of the spans inside
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        inside = max(0.0, min(span.end, ended) - max(span.start, began))
        while stack and stack[-1][0].end <= span.start:
            yield _closed(stack)
        if stack:
            outer, whole, covered = stack[-1]
            stack[-1] = (outer, whole, covered + inside)
        stack.append((span, inside, 0.0))
    while stack:
        yield _closed(stack)


def _closed(stack: list[tuple[Span, float, float]]) -> tuple[Span, float]:
    span, whole, covered = stack.pop()
    return span, max(0.0, whole - covered)
