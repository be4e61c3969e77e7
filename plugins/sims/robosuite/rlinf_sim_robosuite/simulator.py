"""Tasks of robosuite, stepped one after another in this process.

Axes: N environments, C actions of a chunk, A action dimensions, S state size.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Space
from rlinf_core.errors import PluginError
from rlinf_core.media.offscreen import graphics
from rlinf_core.simulators import OneByOne
from rlinf_sim_robosuite.config import RobosuiteConfig
from rlinf_sim_robosuite.drawing import Eye
from rlinf_sim_robosuite.library import tasks
from rlinf_sim_robosuite.scene import Scene

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHOWN_SIZE = 256  # height and width of pictures for people
SHOWN_CAMERA = "frontview"


class RobosuiteSimulator(OneByOne):
    """N environments of one task. Success ends an episode, as a termination."""

    config: RobosuiteConfig

    def __init__(self, config: RobosuiteConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        if config.cameras:
            graphics("robosuite", "cameras")  # where nothing can draw, say so before anything is made
        self._scenes = [Scene(config) for _ in range(num_envs)]
        self.max_episode_steps = config.max_episode_steps
        self._set_spaces()
        self._eye: Eye | None = None

    def tasks(self) -> list[str]:
        """All that robosuite has registered."""
        return tasks()

    def render(self) -> NDArray[np.uint8]:
        """`[N, 256, 256, 3]`, from the first of `cameras`, or the front."""
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """As `render`, of some."""
        camera = next(iter(self.config.cameras), SHOWN_CAMERA)
        return np.stack([self._drawn(n, camera, SHOWN_SIZE) for n in envs])

    def save_state(self) -> bytes:
        """Physics, what robosuite keeps beside it, and what was shown."""
        scenes = [scene.remember() for scene in self._scenes]
        own = (self._seeds, self._steps_N, self._running_N, self._state_NS, self._frames)
        return zlib.compress(pickle.dumps((self._kind(), scenes, own)), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        kind, scenes, (seeds, steps_N, running_N, state_NS, frames) = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        if (kind, len(scenes)) != (self._kind(), self.num_envs):
            raise PluginError(
                f"simulator robosuite: a state of {len(scenes)} x {kind[0]} does not fit {self.num_envs} x "
                f"{self.config.task}, or is of other settings"
            )
        for scene, saved in zip(self._scenes, scenes, strict=True):
            scene.restore(saved)
        self._seeds = list(seeds)
        self._steps_N[:], self._running_N[:], self._state_NS[...] = steps_N, running_N, state_NS
        self._frames = {camera: frames_NHW3.copy() for camera, frames_NHW3 in frames.items()}
        return self._observation([])

    def offload(self) -> None:
        """Free the graphics context; the next picture makes another."""
        if self._eye is not None:
            self._eye.close()
            self._eye = None

    def close(self) -> None:
        """Free the graphics context and the scenes."""
        self.offload()
        for scene in self._scenes:
            scene.close()

    def _set_spaces(self) -> None:
        """A box whose dimensions have different bounds is shown as -1..1, and scaled, where there are any."""
        first, size = self._scenes[0], self.config.image_size
        self._low_A, self._high_A = first.action_low_A, first.action_high_A
        low, high = float(self._low_A[0]), float(self._high_A[0])
        equal = bool((self._low_A == low).all() and (self._high_A == high).all())
        scaled = not equal and bool(np.isfinite([self._low_A, self._high_A]).all())
        told = (-1.0, 1.0) if scaled else (low, high) if equal else (-np.inf, np.inf)
        self.action_space = Space(self._low_A.shape, *told)
        self._centre_A = (self._low_A + self._high_A) / 2 if scaled else np.zeros_like(self._low_A)
        self._half_A = (self._high_A - self._low_A) / 2 if scaled else np.ones_like(self._low_A)
        self.observation_space = {}
        state_S = first.reset(self.seed)
        self._state_NS = np.zeros((self.num_envs, len(state_S)), dtype=np.float32)
        if self.config.state:
            self.observation_space["state"] = Space(state_S.shape, -np.inf, np.inf)
        for camera in self.config.cameras:
            first.check_camera(camera)
            self.observation_space[f"images/{camera}"] = Space((size, size, 3), 0.0, 255.0)
        blank = (self.num_envs, size, size, 3)
        self._frames = {camera: np.zeros(blank, dtype=np.uint8) for camera in self.config.cameras}

    def _start(self, n: int, seed: int) -> None:
        self._state_NS[n] = self._scenes[n].reset(seed)

    def _commands(self, actions: NDArray[Any]) -> NDArray[np.float64]:
        """Scaled to the bounds, and within them."""
        told_NCA: NDArray[np.float64] = np.clip(
            self._centre_A + self._half_A * actions, self._low_A, self._high_A
        )
        return told_NCA

    def _act(self, n: int, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        self._state_NS[n], reward, success, failed = self._scenes[n].step(action)
        return self._paid(reward, success), success, success or failed

    def _paid(self, reward: float, success: bool) -> float:
        if self.config.reward == "dense":
            return reward
        return float(success) if self.config.reward == "sparse" else reward - 1.0

    def _observation(self, changed: Sequence[int]) -> Observation:
        """What all show; pictures of those that have changed are drawn."""
        for camera, frames_NHW3 in self._frames.items():
            for n in changed:
                frames_NHW3[n] = self._drawn(n, camera, self.config.image_size)
        return Observation(
            self._state_NS.copy() if self.config.state else None,
            {camera: frames_NHW3.copy() for camera, frames_NHW3 in self._frames.items()},
            [self.config.instruction] * self.num_envs if self.config.instruction else None,
        )

    def _drawn(self, n: int, camera: str, size: int) -> NDArray[np.uint8]:
        scene = self._scenes[n]
        if self._eye is None:
            largest = max(self.config.image_size, SHOWN_SIZE)
            self._eye = Eye(scene.model, largest, self.config.shadows)
        return self._eye.frame(scene.model, scene.data, camera, size)

    def _kind(self) -> tuple[object, ...]:
        """Of the config, what a state has to agree with."""
        shown = (self._state_NS.shape, self.config.cameras, self.config.image_size)
        return (self.config.task, self.config.robots, self.config.controller, *shown)
