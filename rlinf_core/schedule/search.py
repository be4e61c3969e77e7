"""The search for the fastest plan: `search(graph, profile, cluster)`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlinf_core.cluster.cluster import Cluster
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.blocks import contract
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.frontier import APART, SHARED
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.optimum import SPACE, Found, Optimum
from rlinf_core.schedule.place import fullest, plan_of
from rlinf_core.schedule.plan import Mode, Plan, Prediction
from rlinf_core.schedule.profile import Profile
from rlinf_core.schedule.reasons import why_none, why_not
from rlinf_core.schedule.simulate import Simulation, simulate
from rlinf_core.schedule.tree import Rules, leaves

DIFFERENT = 6  # trees of a kind that are played out
MODES: tuple[Mode, ...] = ("collocated", "disaggregated", "hybrid")


@dataclass(frozen=True)
class Candidate:
    """A plan that was considered, what it does, and why it is not the one chosen ("" for that one)."""

    plan: Plan  # with its prediction
    simulation: Simulation
    reason: str = ""


@dataclass(frozen=True)
class SearchResult:
    """Plans best first; `missing` says why a mode has none."""

    candidates: tuple[Candidate, ...]
    missing: dict[Mode, str]
    least_s: float  # the shortest step of all trees, before their chunks were played out

    @property
    def plans(self) -> list[Plan]:
        """The plans, best first."""
        return [candidate.plan for candidate in self.candidates]

    @property
    def best(self) -> Plan:
        """The plan to follow."""
        return self.candidates[0].plan


def search(
    graph: Graph, profile: Profile, cluster: Cluster, mode: Mode | None = None, top: int = 8
) -> SearchResult:
    """The fastest plans that fit into memory, at most `top`, with the best of each mode among them.

    With `mode`, only plans of that mode. Raises `ConfigError` if there is no plan: it names the
    component that does not fit, what it needs, what there is, and what would do.
    """
    cost = CostModel(graph, profile, cluster)
    optimum = Optimum(contract(graph), cost)
    found = _found(optimum, mode)
    candidates = _ranked(found, optimum, mode)
    if not candidates:
        raise ConfigError(why_none(optimum, mode))
    shown = _shown(candidates, top)
    best = shown[0]
    explained = [best, *(replace(one, reason=why_not(one, best, graph)) for one in shown[1:])]
    modes = MODES if mode is None else (mode,)
    having = {candidate.plan.mode for candidate in candidates}
    missing = {one: why_none(optimum, one) for one in modes if one not in having}
    return SearchResult(tuple(explained), missing, min(one.seconds for one in found))


def predicted(plan: Plan, graph: Graph, cost: CostModel) -> tuple[Plan, Simulation]:
    """A plan with what is expected of it."""
    simulation = simulate(plan, graph, cost)
    memory, _ = fullest(plan, graph, cost)
    prediction = Prediction(simulation.step_s, simulation.busy_s, memory, simulation.bubble_ratio)
    return replace(plan, prediction=prediction), simulation


def _found(optimum: Optimum, mode: Mode | None) -> list[Found]:
    """Trees of all modes asked for, the fastest of all for sure; of other modes, near the fastest."""
    if mode == "collocated":
        same = optimum.collocated()
        return [same] if same else []
    if mode is not None:
        return _different(optimum.best(SPACE) if mode == "disaggregated" else optimum.best(mixed=True))
    same = optimum.collocated()
    found = [same] if same else []
    found += _different(optimum.best(limit=same.seconds if same else math.inf))
    style = min(found, key=lambda one: one.seconds).style if found else 0
    if style != APART:
        found += _different(optimum.best(SPACE, sure=False))
    if style != SHARED | APART:
        found += _different(optimum.best(mixed=True, sure=False))
    return found


def _different(found: list[Found]) -> list[Found]:
    """The fastest trees whose parts have different devices, or travel in chunks of another size."""
    kept: dict[object, Found] = {}
    for one in found:
        seats = tuple((leaf.option.seats, leaf.option.chunk, leaf.option.stages) for leaf in leaves(one.tree))
        kept.setdefault(seats, one)
    return list(kept.values())[:DIFFERENT]


def _ranked(found: list[Found], optimum: Optimum, mode: Mode | None) -> list[Candidate]:
    """All plans of the trees, the fastest first; of equally fast ones that on the fewest sets of devices."""
    graph, cost = optimum.blocks.graph, optimum.cost
    plans: dict[str, Candidate] = {}
    for one in found:
        rules = Rules(optimum.blocks, cost, one.chunk)
        for grown in (True, False):
            plan = plan_of(one.tree, rules, grown)
            key = repr((plan.assignments, plan.stages))
            if key in plans or fullest(plan, graph, cost)[1] > 1.0 or mode not in (None, plan.mode):
                continue
            plans[key] = Candidate(*predicted(plan, graph, cost))
    placed: dict[str, Candidate] = {}  # of plans that differ in chunks or stages alone, the fastest
    for candidate in sorted(plans.values(), key=_rank):
        parts = candidate.plan.assignments
        seats = repr({name: (part.devices, part.model_parallel) for name, part in parts.items()})
        placed.setdefault(seats, candidate)
    return list(placed.values())


def _rank(candidate: Candidate) -> tuple[float, int]:
    sets = {part.devices for part in candidate.plan.assignments.values()}
    return round(candidate.simulation.step_s, 9), len(sets)


def _shown(candidates: list[Candidate], top: int) -> list[Candidate]:
    """The first `top`, but the best of each mode in any case."""
    firsts = [next((one for one in candidates if one.plan.mode == mode), None) for mode in MODES]
    kept = list({id(one): one for one in (candidates[0], *firsts) if one is not None}.values())[:top]
    kept += [one for one in candidates if one not in kept][: max(0, top - len(kept))]
    return sorted(kept, key=_rank)
