"""One environment of robosuite whose episodes follow from their seeds alone.

Axes: A action dimensions, S state size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_sim_robosuite import memory
from rlinf_sim_robosuite.config import RobosuiteConfig
from rlinf_sim_robosuite.library import make, near


class Scene:
    """Robots before a task."""

    def __init__(self, config: RobosuiteConfig) -> None:
        self._config = config
        self._env = make(config)
        self._all_updated = self._env._update_observables
        self._env._update_observables = self._update  # robosuite reads all sensors at each step of physics
        self._tables = memory.tables(self.model)
        self._keys = self._chosen()
        low_A, high_A = (np.asarray(bound, dtype=np.float64) for bound in self._env.action_spec)
        self.action_low_A, self.action_high_A = low_A, high_A

    @property
    def model(self) -> Any:  # Any: of MuJoCo, which is untyped
        """MuJoCo's model."""
        return self._env.sim.model._model

    @property
    def data(self) -> Any:  # Any: of MuJoCo
        """MuJoCo's data."""
        return self._env.sim.data._data

    def reset(self, seed: int) -> NDArray[np.float32]:
        """The state that the episode of this seed starts with."""
        env = self._env
        if not self._config.reload:
            memory.put(self.model, self._tables)
        env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state  # its samplers share it
        return self._flat(env.reset())

    def step(self, action_A: NDArray[np.float64]) -> tuple[NDArray[np.float32], float, bool, bool]:
        """The state, what robosuite pays, and whether the task is done or has failed.

        Physics that became unstable is a failure, which pays nothing.
        """
        _, reward, failed, _ = self._env.step(action_A)
        state_S = self._flat(self._env._get_observations(force_update=True))
        if not (math.isfinite(reward) and np.isfinite(state_S).all()):
            return np.nan_to_num(state_S, posinf=0.0, neginf=0.0), 0.0, False, True
        success = bool(self._env._check_success())
        return state_S, float(reward), success, bool(failed) and not success

    def remember(self) -> dict[str, Any]:
        """All that later steps depend on."""
        return memory.remember(self._env)

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `remember` of a scene of the same config returned."""
        memory.restore(self._env, saved)

    def close(self) -> None:
        """Free the physics."""
        self._env.close()

    def check_camera(self, name: str) -> None:
        """Raises `ConfigError` for a camera that the scene does not have."""
        known = [each for each in self._env.sim.model.camera_names if each]
        if name not in known:
            raise ConfigError(
                f"simulator.cameras (robosuite): {self._config.task} has no camera {name!r}"
                + near(name, known)
            )

    def _update(self, force: bool = False) -> None:
        if force:
            self._all_updated(force=True)

    def _chosen(self) -> list[str]:
        """Names of what the state is made of."""
        shown = self._env._get_observations(force_update=True)
        if not self._config.keys:
            robots = [name for name in self._env._observables if name.startswith("robot") and "_" in name]
            own = [name for name in robots if not name.endswith("_acc")]  # these go up to hundreds
            return own + [name for name in shown if name == "object-state"]
        for name in self._config.keys:
            if name not in shown:
                raise ConfigError(
                    f"simulator.keys (robosuite): {self._config.task} shows no {name!r}{near(name, shown)}"
                )
        return list(self._config.keys)

    def _flat(self, shown: Any) -> NDArray[np.float32]:  # Any: a dictionary of arrays and numbers
        return np.concatenate([np.ravel(shown[name]) for name in self._keys]).astype(np.float32)
