"""Which plan a run starts with, and what it may try."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ConfigError
from rlinf_core.run.candidates import PROFILE
from rlinf_core.run.graph import make_graph
from rlinf_core.run.machines import find_machines
from rlinf_core.run.placement import resolve_placement
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.place import refuse_overfull
from rlinf_core.schedule.plan import Mode, Plan
from rlinf_core.schedule.plan_yaml import plan_from_yaml
from rlinf_core.schedule.profile import Profile, check_fingerprint, fingerprint
from rlinf_core.schedule.profile_yaml import read_profile
from rlinf_core.schedule.search import predicted, search

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.cluster.cluster import Cluster
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.schedule.graph import Graph

MODES: tuple[Mode, ...] = ("collocated", "disaggregated", "hybrid")
RANKED = 8  # plans that the planner is asked for
HISTORY = "plans.jsonl"  # every change of plan, so that a resumed run repeats it


@dataclass(frozen=True)
class Move:
    """A change of plan after so many steps."""

    step: int
    plan: Plan


@dataclass(frozen=True)
class Planning:
    """What is fixed before a run: its graph, its devices, its first plan, and whether others may follow.

    `trials` are tried in the first steps; with a `profile` that is not needed. Without both the first
    plan stays. `replay` are the changes that a resumed run goes through again.
    """

    graph: Graph
    cluster: Cluster
    first: Plan
    trials: tuple[Plan, ...] = ()
    profile: Profile | None = None
    replay: tuple[Move, ...] = ()
    hardware: str = ""  # of the machines, as profiles name it; "" = this machine

    def ranked(self, profile: Profile) -> Sequence[Plan]:
        """Plans for what was measured, best first; none if by the measured memory nothing fits."""
        try:
            return search(self.graph, profile, self.cluster, top=RANKED).plans
        except ConfigError:  # estimates are on the safe side, and the run itself shows what fits
            return ()

    def judged(self, profile: Profile, plan: Plan) -> Plan:
        """The plan with what is expected of it."""
        return predicted(plan, self.graph, CostModel(self.graph, profile, self.cluster))[0]


def prepare(config: RunConfig, engine: Engine | None = None) -> Planning:
    """From the settings. Raises `ConfigError` for a plan or a placement that cannot run here.

    A plan file or a placement is followed as it is; a mode is its default plan, or the best by a profile
    that is given; `auto` starts collocated and tries others, or starts with the best by a profile.
    """
    machines = find_machines(config, engine)
    return replace(
        _planned(config, machines.cluster, machines.hardware, machines.alike), hardware=machines.hardware
    )


def _planned(config: RunConfig, cluster: Cluster, hardware: str, ranks: int) -> Planning:
    graph = make_graph(config)
    profile = _given_profile(config, hardware)
    mode: Mode | None = None if config.mode == "auto" else config.mode
    plan = resolve_placement(config, cluster, graph)
    if profile is not None:
        cost = CostModel(graph, profile, cluster)
        if plan is not None:
            refuse_overfull(plan, graph, cost)
            return Planning(graph, cluster, predicted(plan, graph, cost)[0])
        best = search(graph, profile, cluster, mode=mode, top=1).best
        return Planning(graph, cluster, best, profile=None if mode else profile)
    if plan is not None or mode is not None or ranks < 2:
        return Planning(graph, cluster, plan or default_plan(graph, ranks, mode or "collocated"))
    first, *trials = _defaults(graph, ranks)
    return Planning(graph, cluster, first, tuple(trials))


def _defaults(graph: Graph, devices: int) -> list[Plan]:
    """Of every mode that so many devices allow, collocated first, which has to be one of them."""
    least = min(graph.placed[-1].parallel_sizes)
    modes = [mode for mode in MODES if mode != "disaggregated" or devices > least]
    return [default_plan(graph, devices, mode) for mode in modes]


def resumed(planning: Planning, config: RunConfig, step: int) -> Planning:
    """The planning of a run that goes on after so many steps: by the plan that it had then, through the
    changes that followed, and with what it had measured if it had finished measuring. Settings that fix a
    plan, and another number of devices, start anew."""
    moves = history(Path(config.output))
    used = {device for move in moves for part in move.plan.assignments.values() for device in part.devices}
    if not planning.trials or max(used, default=0) >= planning.cluster.size:
        return planning
    before = [move for move in moves if move.step <= step]
    planning = replace(
        planning,
        first=before[-1].plan if before else planning.first,
        replay=tuple(move for move in moves if move.step > step),
    )
    path = Path(config.output) / PROFILE
    if not path.exists():
        return planning
    profile = read_profile(path)
    return (
        planning
        if profile.fingerprint != run_fingerprint(config, planning.hardware)
        else replace(planning, trials=(), profile=profile)
    )


def history(output: Path) -> list[Move]:
    """The changes of plan that a run has written down."""
    path = output / HISTORY
    if not path.exists():
        return []
    moves = []
    for line in path.read_text().splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:  # the run died while it wrote it, so it never made this move
            break
        moves.append(Move(int(record["step"]), plan_from_yaml(record["plan"], origin=str(path))))
    return moves


def run_fingerprint(config: RunConfig, hardware: str = "") -> str:
    """What a profile depends on: hardware, model and the settings that change the work of a step."""
    return fingerprint(
        hardware=hardware or find_machines(config).hardware,
        model=f"{config.model.name} {config.model.config}",
        task=f"{config.algo.name} {config.data or config.simulator} {config.sampling} {config.lora}",
        step=f"{config.train.prompts_per_step} x {config.algo.config}",
    )


def _given_profile(config: RunConfig, hardware: str) -> Profile | None:
    if not config.schedule.profile:
        return None
    profile = read_profile(Path(config.schedule.profile))
    check_fingerprint(
        profile, run_fingerprint(config, hardware), f"schedule.profile: {config.schedule.profile}"
    )
    return profile
