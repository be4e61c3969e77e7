"""Registers the simulator `maniskill`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import Isolation, SimulatorSpec, hookimpl
from rlinf_sim_maniskill.config import ManiSkillConfig

VARIABLES = {  # one thread a process: of torch, and of the CPU's renderer
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "LP_NUM_THREADS": "1",
}


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="maniskill",
            summary="Any task of ManiSkill3, such as PushCube-v1; and 25 objects to be put on a plate",
            config=ManiSkillConfig,
            target="rlinf_sim_maniskill.simulator:ManiSkillSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True),
            example={"id": "PushCube-v1"},
            isolation=Isolation(
                lock="rlinf_sim_maniskill/lock.txt",
                imports=("sapien", "mani_skill.envs"),
                variables=VARIABLES,
                resolve=True,  # torch for CUDA brings packages that torch for the CPU does not have
                python=">=3.11,<3.13",
            ),
        )
    ]
