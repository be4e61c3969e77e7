"""From the spans of a step to what each component took: the measurements that planning is based on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlinf_core.api.spans import HostSpan
from rlinf_core.run.step_times import component_times
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import Measurement

SHARED = "train_shared"  # the stage


def measurements(
    spans: Iterable[HostSpan], plan: Plan, graph: Graph, began: float, ended: float, device_type: str
) -> tuple[Measurement, ...]:
    """One for each component that ran: its slowest rank, or the average one where ranks share the work out
    among themselves."""
    spans = list(spans)
    times = component_times(spans, began, ended)
    shared = {one.span.worker.partition("[")[0] for one in spans if one.span.name == SHARED}
    return tuple(
        Measurement(
            component=part.name,
            devices=len(_devices(plan, graph, part.name)),
            samples=graph.samples,
            seconds=times[part.name].busy_mean_s if part.name in shared else times[part.name].busy_s,
            chunk=_chunk(plan, graph, part.name),
            device_type=device_type,
            model_parallel=_model_parallel(plan, graph, part.name),
        )
        for part in graph.components
        if part.name in times and times[part.name].busy_s > 0.0
    )


def _devices(plan: Plan, graph: Graph, name: str) -> Sequence[int]:
    part = graph.component(name)
    seat = plan.assignments.get(part.with_ or name)
    return (0,) if seat is None else seat.devices


def _model_parallel(plan: Plan, graph: Graph, name: str) -> int:
    seat = plan.assignments.get(graph.component(name).with_ or name)
    return 1 if seat is None else seat.model_parallel


def _chunk(plan: Plan, graph: Graph, name: str) -> int:
    """Samples of one call on one rank, where that is not simply all of them."""
    cycle = graph.cycle_of(name)
    if len(cycle) > 1 and plan.stages > 1:
        return -(-graph.samples // (len(plan.assignments[name].devices) * plan.stages))
    streams = [plan.assignments[edge.source].chunk for edge in graph.edges if edge.source in plan.assignments]
    arriving = max(streams, default=0)
    if arriving and graph.component(name).lockstep:
        models = len(_devices(plan, graph, name)) // _model_parallel(plan, graph, name)
        return -(-arriving // models)
    return 0
