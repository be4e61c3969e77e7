"""A plan with other numbers of ranks: which devices components gain or give up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rlinf_core.errors import ConfigError, suggest
from rlinf_core.schedule.plan import Plan

if TYPE_CHECKING:
    from rlinf_core.cluster.cluster import Cluster
    from rlinf_core.schedule.graph import Component, Graph

Sets = dict[str, tuple[int, ...]]


def scaled(plan: Plan, graph: Graph, cluster: Cluster, counts: Mapping[str, int]) -> Plan:
    """The plan with so many ranks of these components, all others as they are. Ranks keep their devices: the
    last ones leave first, and new ones sit where nobody does, or fewest do. Members of a cycle that share
    their devices do so afterwards.

    Raises `ConfigError` that names the component and says what it can have.
    """
    sets: Sets = {name: part.devices for name, part in plan.assignments.items()}
    for name, count in counts.items():
        part = _component(name, graph)
        _check_count(part, count, graph, cluster)
        together = [other for other in graph.cycle_of(name) if sets[other] == sets[name]]
        for other in together:
            if counts.get(other, count) != count:
                raise ConfigError(
                    f"{name}={count}, {other}={counts[other]}: they share their devices, so both have the "
                    "same number of ranks"
                )
        apart = {d for other in graph.cycle_of(name) if other not in together for d in sets[other]}
        devices = _devices(name, count, sets, cluster, apart)
        sets |= dict.fromkeys(together, devices)
    parts = {name: replace(part, devices=sets[name]) for name, part in plan.assignments.items()}
    return Plan(parts, plan.stages)


def refuse_fixed(plan: Plan, before: Plan, graph: Graph, what: str) -> None:
    """Raises `ConfigError` for other ranks of what trains, where `what` it is cannot change them."""
    name = graph.placed[-1].name
    if plan.assignments[name].devices != before.assignments[name].devices:
        raise ConfigError(
            f"{name}: {what} cannot change its number of ranks while a run goes on; end the run and go on "
            "with other ranks by rlinf train --resume"
        )


def _component(name: str, graph: Graph) -> Component:
    placed = [part.name for part in graph.placed]
    known = {part.name: part for part in graph.components}
    if name not in known:
        raise ConfigError(
            f"{name}: there is no component {name!r}; this run places: {', '.join(placed)}."
            f"{suggest(name, placed)}"
        )
    part = known[name]
    if part.with_:
        raise ConfigError(f"{name}: it lives in {part.with_} and has as many ranks; scale {part.with_}")
    if not part.on_devices:
        raise ConfigError(
            f"{name}: it needs no device and has one rank; this run places: {', '.join(placed)}"
        )
    return part


def _check_count(part: Component, count: int, graph: Graph, cluster: Cluster) -> None:
    size = min(part.parallel_sizes)
    if count < 1:
        raise ConfigError(f"{part.name}={count}: a component has 1 rank or more")
    if count > cluster.size:
        raise ConfigError(
            f"{part.name}={count}: this run has {_devices_of(cluster)}, and a component has one rank on each "
            f"at most; choose {cluster.size} or fewer (a run is given its devices at its start: ranks=N)"
        )
    if part.max_devices is not None and count > part.max_devices:
        raise ConfigError(
            f"{part.name}={count}: only {part.max_devices} ranks would have work: a step has {graph.samples} "
            f"samples; choose {part.max_devices} or fewer"
        )
    if count % size:
        raise ConfigError(
            f"{part.name}={count}: one model lies on {size} ranks, so it takes a multiple of {size}"
        )


def _devices(name: str, count: int, sets: Sets, cluster: Cluster, apart: set[int]) -> tuple[int, ...]:
    own = sets[name]
    if count <= len(own):
        return own[:count]
    type_of = [node.type for node in cluster.nodes for _ in range(node.devices)]
    used = Counter(device for devices in sets.values() for device in devices)
    free = [
        device
        for device in range(cluster.size)
        if device not in own and device not in apart and type_of[device] == type_of[own[0]]
    ]
    wanted = count - len(own)
    if len(free) < wanted:
        most = len(own) + len(free)
        raise ConfigError(
            f"{name}={count}: there are devices for {most} ranks of it: they are of one type, and not those "
            "of what it talks with at every action"
        )
    return (*own, *sorted(sorted(free, key=lambda device: (used[device], device))[:wanted]))


def _devices_of(cluster: Cluster) -> str:
    return f"{cluster.size} device{'s' if cluster.size > 1 else ''}"
