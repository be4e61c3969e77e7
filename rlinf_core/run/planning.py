"""Which plan a run starts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.run.compose import ranks_and_threads
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.schedule.plan import Plan


def first_plan(config: RunConfig) -> Plan:
    """The plan of the first step."""
    ranks, _ = ranks_and_threads(config)
    return default_plan(make_graph(config), ranks)
