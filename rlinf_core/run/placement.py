"""The plan that the settings of a run fix by hand, checked against what there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.cluster.placement import component_names, one_device_each, parse_placement
from rlinf_core.errors import ConfigError
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import STAGES, default_chunk
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.plan_yaml import read_plan

if TYPE_CHECKING:
    from rlinf_core.cluster.cluster import Cluster
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.schedule.graph import Graph

Devices = Mapping[str, tuple[int, ...]]


def check_placement(config: RunConfig, cluster: Cluster) -> None:
    """Raises `ConfigError` for a placement or a plan that cannot run there."""
    if config.placement or config.plan:
        resolve_placement(config, cluster, make_graph(config))


def resolve_placement(config: RunConfig, cluster: Cluster, graph: Graph) -> Plan | None:
    """The plan of `plan` (a file) or of `placement`; None where neither is set and one has to be chosen.

    Raises `ConfigError` for what cannot run, or what contradicts `mode`.
    """
    if config.plan:
        return read_plan(Path(config.plan), graph, cluster)
    if not config.placement:
        return None
    sets = _devices(config, cluster, graph)
    _refuse(_problems(sets, graph, cluster), _came(config, "placement"))
    plan = _plan(config, {part.name: sets[part.name] for part in graph.placed}, graph)
    if config.mode not in ("auto", plan.mode):
        places = ", ".join(f"{name}: {as_ranges(part.devices)}" for name, part in plan.assignments.items())
        raise ConfigError(
            f"mode: {config.mode}{_came(config, 'mode')} contradicts the placement, which is {plan.mode} "
            f"({places}{_came(config, 'placement')}); drop one of them (mode=auto, placement=null)"
        )
    return plan


def _problems(sets: Devices, graph: Graph, cluster: Cluster) -> Iterator[str]:
    """One line for each rule of the flow that the devices of its components break."""
    yield from _types(sets, cluster)
    yield from _follows(sets, graph)
    yield from _cycles(sets, graph)
    yield from _too_many(sets, graph)
    yield from _whole_models(sets, graph)


def _devices(config: RunConfig, cluster: Cluster, graph: Graph) -> dict[str, tuple[int, ...]]:
    """The device of every rank of every component that was placed."""
    came = _came(config, "placement")
    given = {name for key in config.placement for name in component_names(key)}
    beside = [part.name for part in graph.components if not part.on_devices and part.name in given]
    _refuse(
        (f"placement.{name}: it needs no device and runs beside the others; drop it" for name in beside), came
    )
    followers = [part.name for part in graph.components if part.with_]
    try:
        parsed = parse_placement(config.placement, cluster, [part.name for part in graph.placed], followers)
        return {name: one_device_each(name, ranks) for name, ranks in parsed.items()}
    except ConfigError as err:
        raise ConfigError("\n".join(f"{line}{came}" for line in str(err).splitlines())) from None


def _refuse(problems: Iterator[str], came: str) -> None:
    lines = [f"{problem}{came}" for problem in problems]
    if lines:
        raise ConfigError("\n".join(lines))


def _types(sets: Devices, cluster: Cluster) -> Iterator[str]:
    """The devices of a component are of one type, so that none waits for another."""
    type_of = [node.type for node in cluster.nodes for _ in range(node.devices)]
    for name, devices in sets.items():
        types = list(dict.fromkeys(type_of[device] for device in devices))
        if len(types) > 1:
            own = as_ranges(device for device in devices if type_of[device] == types[0])
            yield (
                f"placement.{name}: its devices are of several types, {' and '.join(types)}; those of one "
                f"component are of one type. One that works: {name}: {own}"
            )


def _follows(sets: Devices, graph: Graph) -> Iterator[str]:
    """A component that lives in another one has no other devices."""
    for part in graph.components:
        if part.with_ and part.name in sets and sets[part.name] != sets[part.with_]:
            own = as_ranges(sets[part.with_])
            yield (
                f"placement.{part.name}: it lives in {part.with_}, so it sits on the same devices, which are "
                f"{own}. One that works: {part.with_},{part.name}: {own}"
            )


def _cycles(sets: Devices, graph: Graph) -> Iterator[str]:
    """Members of a cycle share all devices or none."""
    for one, other in (pair for cycle in graph.cycles for pair in itertools.pairwise(cycle)):
        common = set(sets[one]) & set(sets[other])
        if not common or sets[one] == sets[other]:
            continue
        works = f"{one},{other}: {as_ranges(sorted({*sets[one], *sets[other]}))}"
        apart = sorted(set(sets[other]) - common)
        if apart:
            works += f", or {one}: {as_ranges(sets[one])} and {other}: {as_ranges(apart)}"
        yield (
            f"placement.{one}: it talks with {other} at every action, so they share all devices or none; of "
            f"{as_ranges(sets[one])} and {as_ranges(sets[other])} they share {as_ranges(sorted(common))}. "
            f"One that works: {works}"
        )


def _too_many(sets: Devices, graph: Graph) -> Iterator[str]:
    """No component has more devices than work for them."""
    for part in graph.placed:
        devices, most = sets[part.name], part.max_devices
        if most is not None and len(devices) > most:
            yield (
                f"placement.{part.name}: of its {len(devices)} devices only {most} would have work: a step "
                f"has {graph.samples} samples. One that works: {part.name}: {as_ranges(devices[:most])}"
            )


def _whole_models(sets: Devices, graph: Graph) -> Iterator[str]:
    """Devices that hold one model together come as many at a time."""
    for part in graph.placed:
        devices, size = sets[part.name], min(part.parallel_sizes)
        if len(devices) % size:
            whole = devices[: len(devices) // size * size]
            works = f" One that works: {part.name}: {as_ranges(whole)}" if whole else ""
            yield (
                f"placement.{part.name}: one model lies on {size} ranks (the backend's parallel sizes), "
                f"which do not divide its {len(devices)} devices.{works}"
            )


def _plan(config: RunConfig, sets: dict[str, tuple[int, ...]], graph: Graph) -> Plan:
    chunks = {name: default_chunk(graph, sets, name) for name in sets}
    wanted = config.schedule.chunk
    apart = any(len({sets[name] for name in cycle}) > 1 for cycle in graph.cycles)
    return Plan(
        {
            name: Assignment(
                sets[name],
                wanted or chunk if chunk else 0,
                model_parallel=min(graph.component(name).parallel_sizes),
            )
            for name, chunk in chunks.items()
        },
        (config.schedule.stages or STAGES) if apart else 1,
    )


def _came(config: RunConfig, section: str) -> str:
    """` (from X)` of the settings at a key and below it; "" if nobody set them."""
    found = {
        origin
        for key, origin in config.origins.items()
        if origin != "default" and f"{key}.".startswith(f"{section}.")
    }
    return f" (from {', '.join(sorted(found))})" if found else ""
