"""One step's update made again from what its run has kept: rows, a checkpoint, and the plan of then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.stream import Stream
from rlinf_core.errors import ConfigError
from rlinf_core.flows.flow import merge_reports
from rlinf_core.roles.setup import build
from rlinf_core.run.compose import make_learners, start_hosts
from rlinf_core.run.crew import Crew
from rlinf_core.run.export import find_spaces
from rlinf_core.run.machines import find_machines
from rlinf_core.run.material import recorded
from rlinf_core.run.planning import prepare, resumed
from rlinf_core.run.resuming import FOREIGN, lacks, refuse_other_backend
from rlinf_core.run.scaling import with_scale_of

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.batches import StepBatch
    from rlinf_core.run.checkpoint import Checkpoint
    from rlinf_core.run.material import Material
    from rlinf_core.schedule.plan import Assignment, Plan

OTHER_ORDER = "the step was trained by {then} ranks and is made again by {now}: sums are in another order"


@dataclass
class Replayed:
    """What came out, beside what the run wrote down."""

    metrics: dict[str, float]
    recorded: dict[str, float]  # those of them that the run's step has
    weights: dict[str, float] | None = None  # how far each is from `Material.end`; None = there is none
    exact: bool = True  # computed where numbers come out the same again
    notes: list[str] = field(default_factory=list)

    def differing(self, tolerance: float) -> list[str]:
        """Names of metrics and weights that are not as they were: further off than `tolerance`, which is
        relative to values above 1."""
        metrics = [
            name
            for name, value in self.metrics.items()
            if not _close(self.recorded.get(name, math.nan), value, tolerance)
        ]
        return metrics + [name for name, gap in (self.weights or {}).items() if not gap <= tolerance]


def replay(config: RunConfig, material: Material, *, ranks: int = 0) -> Replayed:
    """Make the updates with these settings, on `ranks` devices at most (0 = as many as then). Processes have
    ended when this returns or raises."""
    found = Replayed({}, {})
    engine: Engine = build(config.engine)
    config = replace(config, checkpoint=replace(config.checkpoint, keep_batches=0))
    try:
        plans = list(_plans(config, material, engine, ranks, found.notes))
        config = replace(config, output="")
        used = plans[0].assignments["actor"].devices
        spaces = find_spaces(config)
        hosts = start_hosts(config, engine, used)
        crew = Crew(config, engine, hosts, plays=False, spaces=spaces)
        crew.place(plans[0])
        found.exact = all(crew.device(number) == "cpu" for number in used)
        if material.start is not None:
            _load(crew, material.start, config)
        for batch, plan in zip(material.batches, plans, strict=True):
            _place(crew, plan, batch.step)
            metrics = _learn(crew, batch)
        found.metrics = metrics
        found.weights = _compared(crew, material.end, config)
    finally:
        engine.stop()
    known = recorded(material.run, material.step)
    found.recorded = {name: known[name] for name in metrics if name in known}
    return found


def _plans(
    config: RunConfig, material: Material, engine: Engine, ranks: int, notes: list[str]
) -> Iterator[Plan]:
    """By which the steps were made, on devices that are there."""
    size = find_machines(config, engine).cluster.size
    most = min(ranks or size, size)
    for batch in material.batches:
        plan = batch.plan
        if plan is None:
            planning = resumed(prepare(config, engine), config, batch.step - 1)
            plan = with_scale_of(planning, material.run, batch.step - 1).first
        here = fitted(plan, most)
        then, now = (len(each.assignments["actor"].devices) for each in (plan, here))
        note = OTHER_ORDER.format(then=then, now=now)
        if then != now and note not in notes:
            notes.append(note)
        yield here


def fitted(plan: Plan, devices: int) -> Plan:
    """With what trains on so many devices, or fewer; whatever else there was is somewhere else still."""
    actor = plan.assignments["actor"]
    if max(actor.devices) < devices:
        return plan
    count = min(len(actor.devices), devices) // actor.model_parallel * actor.model_parallel
    if not count:
        raise ConfigError(
            f"ranks: one model lies on {actor.model_parallel} ranks, and there are {devices} here"
        )
    place = {device: min(number, count - 1) for number, device in enumerate(actor.devices)}

    def put(part: Assignment) -> Assignment:
        found = dict.fromkeys(place.get(device, devices + device) for device in part.devices)
        return replace(part, devices=tuple(found))

    return replace(plan, assignments={name: put(part) for name, part in plan.assignments.items()})


def _place(crew: Crew, plan: Plan, step: int) -> None:
    """The groups are where the plan says."""
    before = crew.groups["actor"].size
    after = len(plan.assignments["actor"].devices)
    if before != after and not crew.resizes:
        raise ConfigError(
            f"step {step}: the run went on with {after} ranks in the place of {before}, and backend "
            f"{crew.config.backend.name!r} cannot do so in memory; replay a step whose checkpoint was "
            "written after that"
        )
    crew.place(plan)


def _learn(crew: Crew, batch: StepBatch) -> dict[str, float]:
    """The update of one step; metrics named `train/...`."""
    config, step = crew.config, batch.step - 1
    if crew.needs.imitates and config.simulator is not None:  # recorded episodes lie with those who learn
        size = config.train.prompts_per_step
        return merge_reports(crew.groups["actor"].call("imitate_recorded", step, 1, size).wait())
    return make_learners(crew).learn(Stream.of([batch.rows]), step, batch.oldest)


def _load(crew: Crew, checkpoint: Checkpoint, config: RunConfig) -> None:
    crew.load(checkpoint.path, _algorithm_state(checkpoint, config))


def _compared(crew: Crew, checkpoint: Checkpoint | None, config: RunConfig) -> dict[str, float] | None:
    """How far each weight is from that of a checkpoint, which is loaded."""
    if checkpoint is None:
        return None
    state = _algorithm_state(checkpoint, config)
    found: dict[str, float] = {}
    for name, group in crew.trained.items():
        gaps = group.call("weights_beside", str(checkpoint.path / name), state).wait()[0]
        found |= {f"{name}: {weight}": gap for weight, gap in gaps.items()}
    return found


def _algorithm_state(checkpoint: Checkpoint, config: RunConfig) -> dict[str, Any]:  # Any: JSON values
    try:
        refuse_other_backend(checkpoint, config)
        return dict(checkpoint.state["algorithm"])
    except FOREIGN as err:
        raise lacks(checkpoint, err) from err


def _close(recorded: float, replayed: float, tolerance: float) -> bool:
    if math.isnan(recorded) and math.isnan(replayed):
        return True
    return recorded == replayed or abs(recorded - replayed) <= tolerance * max(1.0, abs(recorded))
