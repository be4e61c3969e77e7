"""One task's compiled model, in which any number of episodes take turns.

Compiling takes seconds and hundreds of megabytes, for meshes and textures; what changes in an episode is a
few thousand numbers. So there is one model a task, whatever the number of environments, and each episode is
put into it before it is stepped. Episodes are those of LIBERO's own environment to the last bit.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_sim_libero.installation import Installation, environments
from rlinf_sim_libero.tasks import Task

STATE = 8  # numbers that the policy is shown: place of the hand, its axis times its angle, two fingers
ACTION = 7  # change of place, change of orientation, gripper (-1 opens, 1 closes)
_REST = np.array([0.0] * (ACTION - 1) + [-1.0])
_LAYOUT = 0  # seed of the places of furniture: that of the published evaluations

Controls = list[dict[str, Any]]  # of the controller and the gripper: attribute -> value


@dataclass(frozen=True)
class Episode:
    """All that later steps of an episode depend on."""

    physics: NDArray[np.float64]
    controls: Controls


@dataclass
class Seat:
    """An environment's episode: in the scene of its task, or kept here while another is in it."""

    seed: int = 0
    task: int = -1  # place in the list of tasks; -1 = never started
    steps: int = 0
    running: bool = False
    episode: Episode | None = None


class Scene:
    """The model of one task, and the seat whose episode is in it now."""

    def __init__(self, found: Installation, task: Task, states_ID: NDArray[np.float64], settle: int) -> None:
        self._seated: Seat | None = None
        self._states_ID = states_ID
        self._settle = settle
        self._env = _make(found, task)
        import mujoco

        self._mujoco = mujoco
        self._signature = mujoco.mjtState.mjSTATE_INTEGRATION
        self.model: Any = self._env.sim.model._model  # Any: MuJoCo's untyped classes
        self.data: Any = self._env.sim.data._data
        self._parts = _parts(self._env)
        self._site = _only(self.model.site, ("gripper0_grip_site", "gripper0_right_grip_site"))
        self._hand = _only(self.model.body, ("robot0_right_hand",))
        self._fingers = [
            int(self.model.joint(name).qposadr[0])
            for name in (self.model.joint(j).name for j in range(self.model.njnt))
            if "finger_joint" in name
        ]
        self._fresh = self._leave()
        self._starts: dict[int, Episode] = {}

    def begin(self, seat: Seat, number: int) -> None:
        """Start an episode from this initial state, after its objects have come to rest."""
        self.keep()
        self._seated = seat
        if number not in self._starts:
            self._enter(self._fresh)
            self._env.sim.set_state_from_flattened(self._states_ID[number])
            self._env.sim.forward()
            for _ in range(self._settle):
                self._env.step(_REST)
            self._starts[number] = self._leave()
        self._enter(self._starts[number])

    def resume(self, seat: Seat) -> None:
        """Put the episode of this seat into the model, unless it is there."""
        if self._seated is not seat and seat.episode is not None:
            self.keep()
            self._seated = seat
            self._enter(seat.episode)

    def show(self, seat: Seat) -> None:
        """As `resume`; what is seen then follows from the episode alone, not from what ran before it."""
        self.resume(seat)
        self._enter(self._leave())

    def keep(self) -> None:
        """Write the episode that is in the model down in its seat."""
        if self._seated is not None:
            self._seated.episode = self._leave()

    def step(self, action_A: NDArray[Any]) -> bool:
        """Whether the task is done."""
        self._env.step(action_A)
        return bool(self._env._check_success())

    def state(self) -> NDArray[np.float32]:
        """Place of the hand, its orientation as axis times angle, and the two fingers."""
        angles = axis_angle(self.data.xquat[self._hand])
        parts = (self.data.site_xpos[self._site], angles, self.data.qpos[self._fingers])
        return np.concatenate(parts).astype(np.float32)

    def close(self) -> None:
        """Free the model."""
        self._env.close()
        self._starts.clear()

    def _leave(self) -> Episode:
        """The episode that is in the model."""
        physics = np.empty(self._mujoco.mj_stateSize(self.model, self._signature))
        self._mujoco.mj_getState(self.model, self.data, physics, self._signature)
        controls = [
            {name: _copy(value) for name, value in vars(part).items() if _is_plain(value)}
            for part in self._parts
        ]
        return Episode(physics, controls)

    def _enter(self, episode: Episode) -> None:
        """Put an episode into the model. What follows from its state is worked out anew by the next step;
        the state is put back after that, for it tells the solver where to begin."""
        for part, values in zip(self._parts, episode.controls, strict=True):
            vars(part).update({name: _copy(value) for name, value in values.items()})
        self._mujoco.mj_setState(self.model, self.data, episode.physics, self._signature)
        self._mujoco.mj_forward(self.model, self.data)
        self._mujoco.mj_setState(self.model, self.data, episode.physics, self._signature)
        self._env._post_process()  # a stove that is on glows


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Three numbers of a rotation whose quaternion is `[w, x, y, z]`: by 0 to 360 degrees, so that the
    sign of the quaternion counts, as it did where published policies were trained."""
    w = float(np.clip(quaternion[0], -1.0, 1.0))
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    turned: NDArray[np.float64] = np.asarray(quaternion[1:]) * (2.0 * math.acos(w) / sine)
    return turned


def _make(found: Installation, task: Task) -> Any:  # Any: robosuite's untyped environment
    """LIBERO's environment without its renderer and observations, furniture placed as evaluations have it."""
    module = environments(found)
    problem = found.problems / task.suite / f"{task.name}.bddl"
    if not problem.exists():
        raise ConfigError(f"simulator.suite (libero): {found.distribution} does not hold {problem}")
    before = np.random.get_state()
    np.random.seed(_LAYOUT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            env = module.ControlEnv(
                bddl_file_name=str(problem),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                ignore_done=True,
            ).env
    finally:
        np.random.set_state(before)
    env._observables.clear()
    env.visualize(dict.fromkeys(env._visualizations, False))  # marks at the hand, as its reset does
    _give_back()
    return env


def _parts(env: Any) -> list[Any]:
    """What of the robot keeps a state of its own: robosuite 1.4 has one controller, 1.5 several."""
    robot = env.robots[0]
    if hasattr(robot, "composite_controller"):
        return [*robot.composite_controller.part_controllers.values(), *robot.gripper.values()]
    return [robot.controller, robot.gripper]


def _only(get: Any, names: tuple[str, ...]) -> int:
    for name in names:
        with contextlib.suppress(KeyError):
            return int(get(name).id)
    raise ConfigError(f"simulator libero: the robot of this release of LIBERO has none of {', '.join(names)}")


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | type(None) | np.ndarray | np.generic)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _give_back() -> None:
    """Compiling leaves hundreds of megabytes free but with this process; give them to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # where the C library has no such function
        ctypes.CDLL(None).malloc_trim(0)
