"""From settings to a running worker graph: processes, workers, flow and request source."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.api.engine import HostSpec
from rlinf_core.flows.embodied import EmbodiedFlow
from rlinf_core.flows.imitation import ImitationFlow
from rlinf_core.flows.learning import Learners, Taken
from rlinf_core.flows.reasoning import ReasoningFlow
from rlinf_core.flows.selection import Selection
from rlinf_core.roles.setup import algorithm_needs, build, build_algorithm
from rlinf_core.run.crew import Crew
from rlinf_core.run.graph import most_groups
from rlinf_core.run.healing import Healing, Restarts
from rlinf_core.run.machines import Machines, find_machines
from rlinf_core.run.seats import DeviceHosts, Hosts
from rlinf_core.run.source import EpisodeSource, Source, TextSource

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.cycle import Mender
    from rlinf_core.flows.flow import Flow
    from rlinf_core.run.moving import Change, Moved
    from rlinf_core.schedule.plan import Plan
    from rlinf_core.worker import WorkerGroup


@dataclass
class RunGraph:
    """A composed run; `actor` is trained, `flow` is the loop over all groups."""

    engine: Engine
    crew: Crew
    plan: Plan
    flow: Flow
    healing: Healing | None = None

    @property
    def actor(self) -> WorkerGroup:
        """The trained group."""
        return self.crew.groups["actor"]

    @property
    def ranks(self) -> int:
        """Of the trained group."""
        return self.actor.size

    @property
    def devices(self) -> list[str]:
        """The hosts of the devices that the plan uses."""
        used = sorted({number for part in self.plan.assignments.values() for number in part.devices})
        return [self.crew.hosts.devices[number].name for number in used]

    def stop(self, patience_s: float = 2.0) -> None:
        """End every process."""
        self.engine.stop(patience_s)
        gc.unfreeze()

    def apply(self, plan: Plan) -> None:
        """Go on by another plan: groups that it places elsewhere move, with what they have learned."""
        change = self.crew.change(plan)
        change.prepare()
        self.go(change)
        change.tidy()

    def go(self, change: Change) -> list[Moved]:
        """Carry out a change that is prepared."""
        found = change.carry_out()
        self.plan = change.plan
        self.flow = make_flow(self.crew, self.healing)
        self.heal()
        return found

    def heal(self) -> None:
        """Start again what was lost while nobody waited for it, where that is to be done."""
        if self.healing is not None:
            self.healing.sync = self.flow.sync
            self.healing.mend()


def make_source(config: RunConfig) -> Source:
    """The request source that fits the task. Raises `DataError` or `ModelError`."""
    needs = algorithm_needs(config)
    kind = TextSource if config.simulator is None else EpisodeSource
    return kind(config, needs.group_size, most_groups(config, needs))


def start(
    config: RunConfig,
    plan: Plan,
    engine: Engine | None = None,
    restarts: Restarts | None = None,
    told: Callable[[str], None] = print,
    *,
    learns: bool = True,
) -> RunGraph:
    """Start processes and build workers as the plan says; whatever fails stops them all again. With
    `restarts`, processes that are lost later are started again where that can be done alone; without
    `learns` there are only groups that evaluate the policy."""
    engine = build(config.engine) if engine is None else engine
    try:
        others = ["reward"] if config.simulator is None else []
        used = {device for part in plan.assignments.values() for device in part.devices}
        crew = Crew(config, engine, start_hosts(config, engine, used, others), learns=learns)
        crew.place(plan)
        gc.freeze()  # what is there lives as long as the run, and would be looked at again and again
        healing = Healing(crew, engine, restarts, told) if restarts is not None and restarts.limit else None
        return RunGraph(engine, crew, plan, make_flow(crew, healing), healing)
    except BaseException:
        engine.stop()
        raise


def start_hosts(config: RunConfig, engine: Engine, used: Iterable[int], others: Sequence[str] = ()) -> Hosts:
    """The processes of these devices, and others by name."""
    specs = _device_hosts(config, find_machines(config, engine))
    numbers = sorted(used)
    beside = [HostSpec(name=name, log=_log(config, name)) for name in others]
    started = engine.start([*(specs[device] for device in numbers), *beside])
    devices = DeviceHosts(engine, specs)
    devices.take(dict(zip(numbers, started[: len(numbers)], strict=True)))
    return Hosts(devices, dict(zip(others, started[len(numbers) :], strict=True)))


def make_flow(crew: Crew, mender: Mender | None = None) -> Flow:
    """The loop over these groups."""
    flow = _generating_flow(crew, mender)
    if crew.needs.imitates:
        embodied = crew.config.simulator is not None
        return ImitationFlow(flow, recorded=crew.config.train.prompts_per_step if embodied else 0)
    return flow


def make_learners(crew: Crew) -> Learners:
    """The end of the loop."""
    groups = crew.groups
    taken = Taken() if crew.config.checkpoint.keep_batches else None
    return Learners(groups["actor"], groups.get("reference"), groups.get("critic"), crew.lent, taken=taken)


def _generating_flow(crew: Crew, mender: Mender | None) -> Flow:
    config, groups = crew.config, crew.groups
    learners = make_learners(crew)
    selection = _selection(crew)
    temperature = config.eval.temperature
    if config.simulator is not None:
        return EmbodiedFlow(
            groups["environment"],
            groups["rollout"],
            learners,
            eval_greedy=temperature == 0,
            selection=selection,
            mender=mender,
        )
    evaluated = config.sampling if temperature is None else replace(config.sampling, temperature=temperature)
    return ReasoningFlow(
        groups["rollout"],
        groups["reward"],
        learners,
        config.sampling,
        evaluated,
        selection=selection,
        greedy_baseline=crew.needs.greedy_baseline,
    )


def _selection(crew: Crew) -> Selection | None:
    """Where the algorithm selects what it trains on."""
    config = crew.config
    if not crew.needs.max_rounds:
        return None
    return Selection(build_algorithm(config), config.algo.name, config.train.prompts_per_step)


def _device_hosts(config: RunConfig, machines: Machines) -> list[HostSpec]:
    return [
        HostSpec(
            name=f"device{number}",
            threads=threads,
            cores=cores,
            log=_log(config, f"device{number}"),
            device=number,
        )
        for number, (threads, cores) in enumerate(zip(machines.threads, machines.cores, strict=True))
    ]


def _log(config: RunConfig, host: str) -> str:
    return str(Path(config.output).absolute() / "logs" / f"{host}.log") if config.output else ""
