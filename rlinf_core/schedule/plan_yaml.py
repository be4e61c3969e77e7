"""Plans as YAML: what a run writes down, and what a user may set by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.cluster.cluster import Cluster
from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.config.resolve import parse_yaml
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Component, Graph
from rlinf_core.schedule.plan import Assignment, Plan, Prediction
from rlinf_core.schedule.reading import Section

TOP = ("mode", "stages", "components", "prediction")
ASSIGNMENT = ("devices", "chunk", "resident", "model_parallel", "micro_batch")
PREDICTION = ("step_s", "busy_s", "memory_bytes", "bubble_ratio")
MODES = ("collocated", "disaggregated", "hybrid")


def read_plan(path: Path, graph: Graph | None = None, cluster: Cluster | None = None) -> Plan:
    """A plan from a file. Raises `ConfigError` that names the file, the component and the rule."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"plan {path} cannot be read: {err}") from err
    return plan_from_yaml(text, graph, cluster, str(path))


def plan_from_yaml(
    text: str, graph: Graph | None = None, cluster: Cluster | None = None, origin: str = "plan"
) -> Plan:
    """A plan from its YAML, checked against the graph and the cluster where they are given.

    Raises `ConfigError` that names the component and the rule.
    """
    top = Section(parse_yaml(text, origin, "a plan"), origin, TOP)
    components = top.section("components")
    assignments = {name: _assignment(part) for name, part in components.named(ASSIGNMENT)}
    if not assignments:
        raise ConfigError(f"{components.where}: needs at least one component with its devices")
    plan = Plan(assignments, top.whole("stages", 1, least=1), _prediction(top))
    if graph is not None:
        plan = check_plan(plan, graph, origin)
    if cluster is not None:
        check_devices(plan, cluster, origin)
    _check_mode(top, plan)
    return plan


def _assignment(part: Section) -> Assignment:
    devices = parse_devices(part.values.get("devices"), part.at("devices"))
    model_parallel = part.whole("model_parallel", 1, least=1)
    if len(devices) % model_parallel:
        raise ConfigError(
            f"{part.at('devices')}: needs a multiple of model_parallel {model_parallel}, got {len(devices)}"
        )
    return Assignment(
        devices,
        part.whole("chunk", 0),
        part.flag("resident", True),
        model_parallel,
        part.whole("micro_batch", 0),
    )


def parse_devices(value: Any, where: str) -> tuple[int, ...]:  # Any: from YAML
    """`0-3,6` (or a list of numbers) as device numbers in that order. Raises `ConfigError`."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(map(str, value))
    devices: list[int] = []
    for part in str("" if value is None else value).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"{where}: needs device numbers such as '0-3,6' (from 0), got {value!r}")
        if dash and int(last) < int(first):
            raise ConfigError(f"{where}: the range {part.strip()!r} runs backwards; write {last}-{first}")
        devices += range(int(first), int(last or first) + 1)
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise ConfigError(f"{where}: device {twice[0]} is named twice in {value!r}")
    return tuple(devices)


def _prediction(top: Section) -> Prediction | None:
    if not top.has("prediction"):
        return None
    part = top.section("prediction", PREDICTION)
    return Prediction(
        part.number("step_s"),
        part.section("busy_s").numbers(),
        part.number("memory_bytes", 0.0),
        part.number("bubble_ratio", 0.0),
    )


def _check_mode(top: Section, plan: Plan) -> None:
    stated = top.text("mode", plan.mode)
    if stated not in MODES:
        raise ConfigError(f"{top.at('mode')}: needs one of {', '.join(MODES)}, got {stated!r}")
    if stated != plan.mode:
        raise ConfigError(
            f"{top.at('mode')}: says {stated}, but the devices of the components make it {plan.mode}; "
            "change the devices, or leave mode out"
        )


def check_plan(plan: Plan, graph: Graph, origin: str = "plan") -> Plan:
    """The plan of the placed components, if every one has its place and keeps the graph's rules.

    A component that sits with another may be named with the same devices; it is left out then. Raises
    `ConfigError`.
    """
    placed = {part.name: part for part in graph.placed}
    hosts = {part.name: part.with_ for part in graph.components if part.with_}
    for name, assignment in plan.assignments.items():
        where = f"{origin}: components.{name}"
        if name in placed:
            _check_component(assignment, placed[name], graph.samples, where)
        elif name not in hosts:
            raise ConfigError(f"{where}: no such component; this flow places: {', '.join(placed)}")
        elif plan.assignments.get(hosts[name], assignment).devices != assignment.devices:
            raise ConfigError(
                f"{where}: shares the memory of {hosts[name]}, so it needs the same devices; leave it out"
            )
    if missing := [name for name in placed if name not in plan.assignments]:
        raise ConfigError(f"{origin}: components.{missing[0]}: must be given its devices")
    for cycle in graph.cycles:
        _check_cycle(plan.assignments, cycle, origin)
    kept = {name: plan.assignments[name] for name in placed}
    return Plan(kept, plan.stages, plan.prediction)


def _check_component(assignment: Assignment, part: Component, samples: int, where: str) -> None:
    count = len(assignment.devices)
    if assignment.model_parallel not in part.parallel_sizes:
        offered = ", ".join(map(str, part.parallel_sizes))
        raise ConfigError(f"{where}.model_parallel: needs one of {offered}, got {assignment.model_parallel}")
    if part.max_devices is not None and count > part.max_devices:
        raise ConfigError(f"{where}.devices: can use at most {part.max_devices} devices, got {count}")
    if assignment.micro_batch and not part.lockstep:
        raise ConfigError(f"{where}.micro_batch: only what trains has one; drop it from {part.name}")
    if assignment.chunk > samples:
        raise ConfigError(f"{where}.chunk: a step has {samples} samples, got a chunk of {assignment.chunk}")


def _check_cycle(assignments: Mapping[str, Assignment], cycle: Sequence[str], origin: str) -> None:
    """Members of a cycle sit on the same devices or on disjoint ones."""
    for index, one in enumerate(cycle):
        for other in cycle[index + 1 :]:
            ours, theirs = assignments[one].devices, assignments[other].devices
            if ours != theirs and set(ours) & set(theirs):
                raise ConfigError(
                    f"{origin}: components.{one} and components.{other} exchange messages, so they need "
                    f"the same devices or none in common, got {as_ranges(ours)} and {as_ranges(theirs)}"
                )


def check_devices(plan: Plan, cluster: Cluster, origin: str = "plan") -> None:
    """Every device exists, and a component's are of one type. Raises `ConfigError`."""
    for name, assignment in plan.assignments.items():
        where = f"{origin}: components.{name}.devices"
        if max(assignment.devices) >= cluster.size:
            got = as_ranges(assignment.devices)
            raise ConfigError(f"{where}: this cluster has devices 0-{cluster.size - 1}, got {got}")
        types = list(dict.fromkeys(map(cluster.type_of, assignment.devices)))
        if len(types) > 1:
            raise ConfigError(f"{where}: need to be of one type, are {' and '.join(types)}")


def plan_to_yaml(plan: Plan) -> str:
    """YAML that reads back to the same plan."""
    lines = [f"mode: {plan.mode}", f"stages: {plan.stages}", "components:"]
    for name, assignment in plan.assignments.items():
        lines += [f"  {name}:", f"    devices: {as_ranges(assignment.devices)}"]
        for key in ASSIGNMENT[1:]:
            value = getattr(assignment, key)
            if value != getattr(Assignment(()), key):
                lines.append(f"    {key}: {json.dumps(value)}")
    if plan.prediction is not None:
        lines += ["prediction:", *_prediction_lines(plan.prediction)]
    return "\n".join(lines) + "\n"


def _prediction_lines(prediction: Prediction) -> list[str]:
    lines = [f"  {key}: {json.dumps(getattr(prediction, key))}" for key in PREDICTION if key != "busy_s"]
    if prediction.busy_s:
        lines += ["  busy_s:", *(f"    {name}: {json.dumps(s)}" for name, s in prediction.busy_s.items())]
    return lines
