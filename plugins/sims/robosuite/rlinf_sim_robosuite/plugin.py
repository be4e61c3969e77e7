"""Registers the simulator `robosuite`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import Isolation, SimulatorSpec, hookimpl
from rlinf_sim_robosuite.config import RobosuiteConfig


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="robosuite",
            summary="Manipulation tasks of robosuite, such as Lift, Door or TwoArmLift",
            config=RobosuiteConfig,
            target="rlinf_sim_robosuite.simulator:RobosuiteSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True, offload=True),
            isolation=Isolation(
                lock="rlinf_sim_robosuite/lock.txt", imports=("robosuite",), python=">=3.11,<3.13"
            ),
            example={"max_episode_steps": 12},
        )
    ]
