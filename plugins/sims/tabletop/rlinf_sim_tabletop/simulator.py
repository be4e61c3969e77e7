"""Reach the block of the colour that is named, and no other.

Axes: N environments, C actions of a chunk, A action dimensions, H height, W width, K colours.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Space
from rlinf_core.errors import PluginError
from rlinf_core.media.offscreen import Camera, graphics
from rlinf_core.simulators import OneByOne
from rlinf_sim_tabletop.config import COLOURS, TabletopConfig
from rlinf_sim_tabletop.scene import REACH, Start, model, mujoco, start

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAMERA = "top"
SHOWN_TO_PEOPLE = 256  # pixels
_PHYSICS_STEPS = 20  # of an action
_VERBS = ("reach", "touch", "move to")


class TabletopSimulator(OneByOne):
    """N tables. An action moves where the gripper is drawn to; the first block that it comes near ends the
    episode, as a success if it is the one wanted."""

    config: TabletopConfig

    def __init__(self, config: TabletopConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.max_episode_steps = config.max_episode_steps
        self.action_space = Space(shape=(2,), low=-1.0, high=1.0)
        size = (config.image_size, config.image_size, 3)
        self.observation_space = {
            "state": Space(shape=(2,), low=-1.0, high=1.0),
            f"images/{CAMERA}": Space(shape=size, low=0.0, high=255.0),
        }
        graphics("tabletop", "image_size")  # where nothing can draw, say so before anything is played
        self._mujoco: Any = mujoco()
        self._model = model()
        self._data = [self._mujoco.MjData(self._model) for _ in range(num_envs)]
        self._cameras: dict[int, Camera] = {}  # by the size of their pictures
        self._starts: list[Start | None] = [None] * num_envs
        self._frames_NHW3 = np.zeros((num_envs, *size), dtype=np.uint8)
        self._texts = [""] * num_envs

    def expert(self, speed_N: Sequence[float]) -> NDArray[np.float32]:
        """Straight to the block that is wanted."""
        actions_NA = np.zeros((self.num_envs, 2), dtype=np.float32)
        for n, (begun, data) in enumerate(zip(self._starts, self._data, strict=True)):
            if begun is not None:
                way_A = (begun.blocks[begun.wanted] - data.ctrl) / self.config.stride
                actions_NA[n] = speed_N[n] * way_A / max(1.0, float(np.abs(way_A).max()))
        return actions_NA

    def tasks(self) -> list[str]:
        """There is one."""
        return ["reach"]

    def render(self) -> NDArray[np.uint8]:
        """Large pictures of all tables."""
        camera = self._camera(SHOWN_TO_PEOPLE)
        return np.stack([camera.frame(self._model, data) for data in self._data])

    def save_state(self) -> bytes:
        """Physics, starts and counters; pictures are drawn again."""
        physics = [(data.qpos.copy(), data.qvel.copy(), data.ctrl.copy(), data.time) for data in self._data]
        own = (self._starts, self._seeds, self._steps_N, self._running_N, self._texts)
        return zlib.compress(pickle.dumps((physics, own)), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        physics, (starts, seeds, steps_N, running_N, texts) = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        if len(physics) != self.num_envs:
            raise PluginError(
                f"simulator tabletop: a state of {len(physics)} tables does not fit {self.num_envs}"
            )
        self._starts, self._seeds, self._texts = starts, seeds, texts
        self._steps_N[:], self._running_N[:] = steps_N, running_N
        for n, (qpos, qvel, ctrl, time) in enumerate(physics):
            self._place(n, starts[n])
            data = self._data[n]
            data.qpos[:], data.qvel[:], data.ctrl[:], data.time = qpos, qvel, ctrl, time
            self._mujoco.mj_forward(self._model, data)
        return self._observation(range(self.num_envs))

    def offload(self) -> None:
        """Free the graphics contexts; the next picture makes another."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras = {}

    def close(self) -> None:
        """Free the graphics contexts."""
        self.offload()

    def _start(self, n: int, seed: int) -> None:
        begun = start(seed, self.config.blocks, self.config.colours, len(_VERBS))
        self._starts[n] = begun
        self._texts[n] = f"{_VERBS[begun.verb]} the {COLOURS[begun.wanted]} block"
        self._place(n, begun)
        data = self._data[n]
        data.qpos[:] = data.ctrl[:] = begun.gripper
        self._mujoco.mj_forward(self._model, data)

    def _place(self, n: int, begun: Start | None) -> None:
        self._mujoco.mj_resetData(self._model, self._data[n])
        if begun is not None:
            self._data[n].mocap_pos[:, :2] = begun.blocks

    def _commands(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Moves in metres."""
        moves_NCA: NDArray[Any] = np.clip(actions, -1.0, 1.0) * self.config.stride
        return moves_NCA

    def _act(self, n: int, action: NDArray[Any]) -> tuple[float, bool, bool]:
        data, begun = self._data[n], self._starts[n]
        data.ctrl[:] = np.clip(data.ctrl + action, -REACH, REACH)
        self._mujoco.mj_step(self._model, data, _PHYSICS_STEPS)
        away_K = np.linalg.norm(begun.blocks - data.qpos, axis=1)  # type: ignore[union-attr]
        near = int(away_K.argmin())
        reached = bool(away_K[near] < self.config.radius)
        success = reached and near == begun.wanted  # type: ignore[union-attr]
        return self._paid(n, reached, success), success, reached

    def _settle(self, n: int) -> None:
        """Pictures show where things are now."""
        self._mujoco.mj_kinematics(self._model, self._data[n])

    def _paid(self, n: int, reached: bool, success: bool) -> float:
        """A wrong block costs what the rest of the episode would: failing early is no better than late."""
        if self.config.reward == "sparse":
            return float(success)
        steps = self.max_episode_steps - self._steps_N[n] + 1 if reached and not success else 1
        return float(success) - float(steps) / self.max_episode_steps

    def _camera(self, size: int) -> Camera:
        if size not in self._cameras:
            view = {"fixedcamid": 0}
            self._cameras[size] = Camera(self._model, size, view, shadows=False, simulator="tabletop")
        return self._cameras[size]

    def _observation(self, changed: Sequence[int]) -> Observation:
        """What all show; pictures of those that have changed are drawn."""
        camera = self._camera(self.config.image_size)
        for n in changed:
            self._frames_NHW3[n] = camera.frame(self._model, self._data[n])
        state_N2 = np.stack([data.qpos / REACH for data in self._data]).astype(np.float32)
        return Observation(state_N2, {CAMERA: self._frames_NHW3.copy()}, list(self._texts))
