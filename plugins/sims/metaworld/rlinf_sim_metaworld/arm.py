"""One environment of Meta-World whose episodes follow from their seeds alone.

Meta-World's own reset moves the hand to where it starts in 100 simulated steps, and leaves behind what the
last episode changed in the model. Here the model is put back first; and where nothing but the hand moves,
which is always the same, the hand is put where it ends. The episode that starts is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from rlinf_sim_metaworld.tasks import make

FRAME = 18  # numbers of the present in an observation; those of the step before follow, then the goal
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_LARGEST = 1 << 16  # bytes of a table of the model that tasks may change, such as the place of a body
_UNSEEN = ("site_", "cam_", "light_", "mat_", "tex_", "geom_rgba")  # tables without effect on motion

Tables = dict[str, NDArray[Any]]


class Arm:
    """One arm before one task."""

    def __init__(self, task: str) -> None:
        self.task = task
        self._env = make(task)
        self._reset_hand = self._env._reset_hand
        self._env._reset_hand = self._place_hand
        self._tables = _tables(self._env.model)
        self._hand: NDArray[np.float64] | None = None  # the physics one step before the hand has arrived

    @property
    def model(self) -> Any:  # Any: MuJoCo's, which is untyped
        """What there is."""
        return self._env.model

    @property
    def data(self) -> Any:  # Any: as above
        """How it is now."""
        return self._env.data

    def reset(self, seed: int) -> NDArray[np.float64]:
        """The observation that the episode of this seed starts with."""
        env = self._env
        _put(env.model, self._tables)
        env.seed(seed)
        env.seeded_rand_vec, env._freeze_rand_vec = True, False
        env.curr_path_length = 0
        mujoco.mj_resetData(env.model, env.data)
        env.reset_model()  # draws where things are, and moves them in the model
        env._freeze_rand_vec = True
        mujoco.mj_resetData(env.model, env.data)
        seen: NDArray[np.float64] = env.reset_model()
        env._prev_obs = seen[:FRAME].copy()
        seen[FRAME : 2 * FRAME] = env._prev_obs
        return seen

    def step(self, action_A: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool]:
        """What is seen, Meta-World's reward and whether the task is done."""
        seen, reward, _, _, info = self._env.step(action_A)
        return seen, float(reward), bool(info["success"])

    def remember(self) -> dict[str, Any]:
        """All that later steps depend on."""
        env = self._env
        own = {name: value for name, value in vars(env).items() if _is_plain(value)}
        return {"physics": _physics(env), "tables": _tables(env.model), "own": own}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `remember` of an arm before the same task returned."""
        env = self._env
        _put(env.model, saved["tables"])
        mujoco.mj_setState(env.model, env.data, saved["physics"], _STATE)
        mujoco.mj_forward(env.model, env.data)
        mujoco.mj_setState(env.model, env.data, saved["physics"], _STATE)  # the solver's start as it was
        vars(env).update(saved["own"])

    def close(self) -> None:
        """Free the environment."""
        self._env.close()

    def _place_hand(self, steps: int = 50) -> None:
        env = self._env
        if not _equal(env.model, self._tables):
            self._reset_hand(steps)  # something stands elsewhere, and the hand may touch it
            return
        if self._hand is None:
            self._reset_hand(steps - 1)
            self._hand = _physics(env)
        mujoco.mj_setState(env.model, env.data, self._hand, _STATE)
        self._reset_hand(1)


def _physics(env: Any) -> NDArray[np.float64]:
    state = np.empty(mujoco.mj_stateSize(env.model, _STATE))
    mujoco.mj_getState(env.model, env.data, state, _STATE)
    return state


def _tables(model: Any) -> Tables:
    """Copies of what a task may change in its model."""
    named = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {
        name: value.copy()
        for name, value in named.items()
        if isinstance(value, np.ndarray) and value.flags.writeable and 0 < value.nbytes <= _LARGEST
    }


def _put(model: Any, tables: Tables) -> None:
    for name, value in tables.items():
        getattr(model, name)[...] = value


def _equal(model: Any, tables: Tables) -> bool:
    """As far as it moves anything."""
    return all(
        np.array_equal(getattr(model, name), value)
        for name, value in tables.items()
        if not name.startswith(_UNSEEN)
    )


def _is_plain(value: Any) -> bool:
    """Numbers, texts and arrays of the environment's own, not views of the physics, which follow from it."""
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return isinstance(value, bool | int | float | str | type(None) | np.ndarray | np.generic)
