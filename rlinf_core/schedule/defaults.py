"""The plan of each mode where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.plan import Assignment, Mode, Plan

CHUNKS = 8  # into which a step is cut where it may travel in pieces
STAGES = 2  # groups of environments that take turns with a policy apart from them


def default_plan(graph: Graph, devices: int, mode: Mode = "collocated") -> Plan:
    """`collocated`: everything everywhere. `disaggregated`: the last component (what trains) on one
    half of the devices, what comes before on the other. `hybrid`: what trains everywhere; of what comes
    before, a cycle's members on one half each, others on one half.

    What trains has a multiple of the devices that hold one model. Raises `ConfigError` for a mode that so few
    devices do not allow.
    """
    *before, last = graph.placed
    size = min(last.parallel_sizes)
    _check_size(last.name, size, devices, mode)
    if mode != "collocated" and devices < 2:
        raise ConfigError(
            f"mode: {mode} needs 2 devices or more, this run has {devices}; set mode=collocated, or ranks=2"
        )
    trains = devices // (2 if mode == "disaggregated" else 1) // size * size or size
    if mode == "disaggregated":
        sets = {part.name: tuple(range(devices - trains)) for part in before}
        sets[last.name] = tuple(range(devices - trains, devices))
    else:
        everywhere = tuple(range(trains))
        sets = {part.name: everywhere for part in graph.placed}
    if mode == "hybrid":
        half = everywhere[: trains - trains // 2]
        sets.update({part.name: half for part in before})
        for cycle in graph.cycles:
            sets.update({name: everywhere[len(half) :] for name in cycle[1:]})
    apart = any(len({sets[name] for name in cycle}) > 1 for cycle in graph.cycles)
    return Plan(
        {
            name: Assignment(
                part,
                default_chunk(graph, sets, name),
                model_parallel=min(graph.component(name).parallel_sizes),
            )
            for name, part in sets.items()
        },
        STAGES if apart else 1,
    )


def _check_size(name: str, size: int, devices: int, mode: Mode) -> None:
    needed = size + (mode == "disaggregated")
    if size > 1 and devices < needed:
        raise ConfigError(
            f"mode: one model of {name} lies on {size} ranks, so that {mode} needs {needed} devices or more; "
            f"this run has {devices}. Set ranks={needed}, or smaller parallel sizes of the backend"
        )


def default_chunk(graph: Graph, sets: dict[str, tuple[int, ...]], name: str) -> int:
    """Samples that leave a component at once: a part of the step where they may travel in parts."""
    last = graph.placed[-1].name
    if name == last or not streams(graph, sets[name], sets[last]):
        return 0
    quantum = max(edge.quantum for edge in graph.edges)
    return max(quantum, -(-graph.samples // CHUNKS // quantum) * quantum)


def streams(graph: Graph, before: Sequence[int], last: Sequence[int]) -> bool:
    """Whether what trains may take samples before all are there: they are of its own step, no barrier stands
    before it, and it has devices of its own (a rank that waits for a collective while another still
    generates would block both)."""
    barrier = any(edge.barrier for edge in graph.edges if edge.target == graph.placed[-1].name)
    return not barrier and not graph.ahead and not set(before) & set(last)
