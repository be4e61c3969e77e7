"""Why a run has its plan: what its own measurements predict of every plan that it could have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.errors import RlinfError
from rlinf_core.run.candidates import PROFILE, candidates
from rlinf_core.run.graph import make_graph
from rlinf_core.run.machines import find_cluster
from rlinf_core.run.output import SETTINGS
from rlinf_core.schedule.profile_yaml import read_profile
from rlinf_core.schedule.reasons import placement_text


@dataclass(frozen=True)
class Considered:
    """One plan. `reason`: why it is not the first one, empty for that."""

    mode: str
    placement: str
    step_s: float
    idle: float  # share of devices' time
    reason: str


def considered(folder: Path, most: int = 8) -> tuple[list[Considered], str]:
    """Plans, fastest first, and why there are none; on the devices of this machine."""
    if not (folder / PROFILE).exists():
        return [], ""
    try:
        config = compose(Options(config=(folder / SETTINGS,), output=str(folder)))
        found = candidates(config, make_graph(config), find_cluster(config), read_profile(folder / PROFILE))
    except RlinfError as err:
        return [], str(err)
    return [
        Considered(
            each.plan.mode,
            placement_text(each.plan),
            each.simulation.step_s,
            each.simulation.bubble_ratio,
            each.reason,
        )
        for each in found.candidates[:most]
    ], ""
