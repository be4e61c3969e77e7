"""Registers the simulator `tabletop`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import SimulatorSpec, hookimpl
from rlinf_sim_tabletop.config import TabletopConfig


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="tabletop",
            summary="Coloured blocks on a table: a small picture, an instruction, and an expert",
            config=TabletopConfig,
            target="rlinf_sim_tabletop.simulator:TabletopSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True, offload=True, expert=True),
        )
    ]
