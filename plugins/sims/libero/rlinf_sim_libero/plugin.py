"""Registers the simulator `libero`."""

from __future__ import annotations

from rlinf_core.api import SimulatorCapabilities
from rlinf_core.plugins import Isolation, SimulatorSpec, hookimpl
from rlinf_sim_libero.config import LiberoConfig


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """The one simulator of this distribution."""
    return [
        SimulatorSpec(
            name="libero",
            summary="LIBERO's 130 household tasks with one arm, each told in a sentence",
            config=LiberoConfig,
            target="rlinf_sim_libero.simulator:LiberoSimulator",
            provides=SimulatorCapabilities(save_state=True, render=True, offload=True),
            example={  # a task of few and plain things
                "suite": "libero_90",
                "task": 20,
                "cameras": [],
                "settle_steps": 2,
                "max_episode_steps": 6,
            },
            isolation=Isolation(
                lock="rlinf_sim_libero/lock.txt",
                imports=(
                    "mujoco",
                    "bddl",
                    "cv2",
                    "gymnasium",
                    "matplotlib",
                    "numba",
                    "scipy",
                    "libero.libero",
                ),
                python=">=3.11,<3.13",
            ),
        )
    ]
