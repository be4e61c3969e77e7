"""The plans that a run could have, with what a profile predicts of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.errors import ConfigError
from rlinf_core.run.placement import resolve_placement
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.place import fullest
from rlinf_core.schedule.reasons import why_not
from rlinf_core.schedule.search import Candidate, SearchResult, predicted, search

if TYPE_CHECKING:
    from rlinf_core.cluster.cluster import Cluster
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.schedule.graph import Graph
    from rlinf_core.schedule.plan import Plan
    from rlinf_core.schedule.profile import Profile

PROFILE = "profile.yaml"  # in the folder of a run that has measured
EXAMPLE = "components: {rollout: {curves: [{per_sample_s: 0.5}]}, actor: {curves: [{per_sample_s: 0.2}]}}"
GIB = 2**30


def profile_path(config: RunConfig, file: Path | None = None) -> Path:
    """The profile file given, else `schedule.profile`, else that of the run in `output`.

    Raises `ConfigError` that says how to get one.
    """
    if file is not None:
        return file
    if config.schedule.profile:
        return Path(config.schedule.profile)
    beside = Path(config.output) / PROFILE
    if config.output and beside.exists():
        return beside
    looked = f", and there is no {beside}" if config.output else ""
    raise ConfigError(
        f"no profile says what the components cost; neither --profile nor schedule.profile is set{looked}. "
        f"A run with mode=auto measures one and writes RUN/{PROFILE}; one can be written by hand, such as "
        f"'{EXAMPLE}'"
    )


def candidates(config: RunConfig, graph: Graph, cluster: Cluster, profile: Profile) -> SearchResult:
    """Plans best first; one that the settings fix (`placement`, `plan`) comes before all others.

    Raises `ConfigError` if there is none.
    """
    fixed = resolve_placement(config, cluster, graph)
    mode = None if config.mode == "auto" or fixed else config.mode
    found = search(graph, profile, cluster, mode)
    return found if fixed is None else _with_fixed(fixed, found, CostModel(graph, profile, cluster))


def _with_fixed(fixed: Plan, found: SearchResult, cost: CostModel) -> SearchResult:
    plan, simulation = predicted(fixed, cost.graph, cost)
    need, share = fullest(plan, cost.graph, cost)
    unfit = f"does not fit: needs {need / GIB:.3g} GiB on its fullest device, {share:.0%} of what it has"
    first = Candidate(plan, simulation, unfit if share > 1 else "")
    others = [
        replace(one, reason=_beside(one, first, cost.graph))
        for one in found.candidates
        if one.plan.assignments != plan.assignments
    ]
    return replace(found, candidates=(first, *others))


def _beside(other: Candidate, fixed: Candidate, graph: Graph) -> str:
    """Why a plan is not taken where the settings fix another one."""
    gain = 1 - other.simulation.step_s / fixed.simulation.step_s
    if gain <= 0:
        return why_not(other, fixed, graph)
    return f"{gain:.0%} faster, but the settings fix the placement"
