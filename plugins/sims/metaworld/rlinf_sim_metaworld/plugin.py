"""Registers the simulator `metaworld`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import SimulatorSpec, hookimpl
from rlinf_sim_metaworld.config import MetaWorldConfig


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="metaworld",
            summary="Fifty manipulation tasks of Meta-World with one arm, such as reach-v3",
            config=MetaWorldConfig,
            target="rlinf_sim_metaworld.simulator:MetaWorldSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True, offload=True, expert=True),
            example={"task": "push-v3"},
        )
    ]
