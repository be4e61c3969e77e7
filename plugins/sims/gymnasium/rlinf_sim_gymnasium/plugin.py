"""Registers the simulator `gymnasium`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import SimulatorSpec, hookimpl
from rlinf_sim_gymnasium.config import GymnasiumConfig


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="gymnasium",
            summary="Any environment registered with Gymnasium, such as Reacher-v5",
            config=GymnasiumConfig,
            target="rlinf_sim_gymnasium.simulator:GymnasiumSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True, offload=True),
            example={"id": "Reacher-v5"},
        )
    ]
