"""The plan of each mode where nothing was measured."""

from __future__ import annotations

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.plan import Assignment, Mode, Plan

CHUNKS = 8  # into which a step is cut where it may travel in pieces
STAGES = 2  # groups of environments that take turns with a policy apart from them


def default_plan(graph: Graph, devices: int, mode: Mode = "collocated") -> Plan:
    """`collocated`: everything everywhere. `disaggregated`: the last component (what trains) on one
    half of the devices, what comes before on the other. `hybrid`: what trains everywhere; of what comes
    before, a cycle's members on one half each, others on one half.

    Raises `ConfigError` for a mode that so few devices do not allow.
    """
    if mode != "collocated" and devices < 2:
        raise ConfigError(
            f"mode: {mode} needs 2 devices or more, this run has {devices}; set mode=collocated, or ranks=2"
        )
    everywhere = tuple(range(devices))
    *before, last = graph.placed
    sets = {part.name: everywhere for part in graph.placed}
    half = everywhere[: devices - devices // 2]
    if mode == "disaggregated":
        sets.update({part.name: half for part in before})
        sets[last.name] = everywhere[len(half) :]
    elif mode == "hybrid":
        sets.update({part.name: half for part in before})
        for cycle in graph.cycles:
            sets.update({name: everywhere[len(half) :] for name in cycle[1:]})
    apart = any(len({sets[name] for name in cycle}) > 1 for cycle in graph.cycles)
    return Plan(
        {name: Assignment(part, default_chunk(graph, sets, name)) for name, part in sets.items()},
        STAGES if apart else 1,
    )


def default_chunk(graph: Graph, sets: dict[str, tuple[int, ...]], name: str) -> int:
    """Samples that leave a component at once: a part of the step where what trains may start before the
    end, on devices of its own; otherwise 0."""
    last = graph.placed[-1].name
    barrier = any(edge.barrier for edge in graph.edges if edge.target == last)
    shares = set(sets[name]) & set(sets[last])
    if name == last or barrier or shares:
        return 0
    quantum = max(edge.quantum for edge in graph.edges)
    return max(quantum, -(-graph.samples // CHUNKS // quantum) * quantum)
