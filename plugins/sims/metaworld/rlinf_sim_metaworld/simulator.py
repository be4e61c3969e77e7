"""Tasks of Meta-World, stepped one after another in this process.

Axes: N environments, C actions of a chunk, S state size.
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
from rlinf_sim_metaworld.config import MetaWorldConfig
from rlinf_sim_metaworld.experts import expert_action
from rlinf_sim_metaworld.pictures import Pictures
from rlinf_sim_metaworld.tasks import chosen, names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_sim_metaworld.arm import Arm

OBSERVED = 39  # numbers that Meta-World shows


class MetaWorldSimulator(OneByOne):
    """N arms. An episode is of the task that its seed says; success ends it, as a termination."""

    config: MetaWorldConfig

    def __init__(self, config: MetaWorldConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self._tasks = chosen(config.task)
        if config.images:
            graphics("metaworld")  # where nothing can draw, say so before anything is played
        self.max_episode_steps = config.max_episode_steps
        self.action_space = Space(shape=(4,), low=-1.0, high=1.0)
        size = OBSERVED + (len(self._tasks) if config.task_id else 0)
        self.observation_space = {}
        if config.state:
            self.observation_space["state"] = Space(shape=(size,), low=-np.inf, high=np.inf)
        pixels = (config.image_size, config.image_size, 3)
        self._frames: dict[str, NDArray[np.uint8]] = {}  # camera -> [N, H, W, 3]
        for camera in config.cameras if config.images else ():
            self.observation_space[f"images/{camera}"] = Space(shape=pixels, low=0.0, high=255.0)
            self._frames[camera] = np.zeros((num_envs, *pixels), dtype=np.uint8)
        self._pictures = Pictures(config.shadows)
        self._arms: list[Arm | None] = [None] * num_envs
        self._idle: dict[str, list[Arm]] = {task: [] for task in self._tasks}
        self._state_NS = np.zeros((num_envs, size), dtype=np.float32)

    def tasks(self) -> list[str]:
        """The fifty, without the sets of them."""
        return names()

    def expert(self, speed_N: Sequence[float]) -> NDArray[np.float32]:
        """What Meta-World's own policies do; speed is that of the hand."""
        actions_NA = np.zeros((self.num_envs, 4), dtype=np.float32)
        for n, speed in enumerate(speed_N):
            arm = self._arms[n]
            if arm is not None:
                actions_NA[n] = expert_action(arm.task, self._state_NS[n, :OBSERVED])
                actions_NA[n, :3] *= speed
        return actions_NA

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` of `render_size`, by the first camera."""
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """As `render`; black before the first episode."""
        size = self.config.render_size
        return np.stack([self._draw(n, self.config.cameras[0], size) for n in envs])

    def offload(self) -> None:
        """Free the graphics contexts; the next picture makes another."""
        self._pictures.close()

    def save_state(self) -> bytes:
        """Physics, what Meta-World keeps beside it, and what was shown."""
        arms = [None if arm is None else (arm.task, arm.remember()) for arm in self._arms]
        own = (self._seeds, self._steps_N, self._running_N, self._state_NS, self._frames)
        return zlib.compress(pickle.dumps((self.config.task, arms, own)), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        task, arms, (seeds, steps_N, running_N, state_NS, frames) = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        shapes = {camera: shown.shape for camera, shown in self._frames.items()}
        saved_shapes = {camera: shown.shape for camera, shown in frames.items()}
        if (task, state_NS.shape, saved_shapes) != (self.config.task, self._state_NS.shape, shapes):
            raise PluginError(
                f"simulator metaworld: a state of {len(arms)} x {task} does not fit {self.num_envs} x "
                f"{self.config.task}, or shows other things"
            )
        for n, saved in enumerate(arms):
            if saved is not None:
                self._seat(n, saved[0]).restore(saved[1])
        self._seeds = list(seeds)
        self._steps_N[:], self._running_N[:], self._state_NS[...] = steps_N, running_N, state_NS
        self._frames = frames
        return self._observation([])

    def close(self) -> None:
        """Free all arms and graphics contexts."""
        self._pictures.close()
        seated = [arm for arm in self._arms if arm is not None]
        for arm in [*seated, *(arm for waiting in self._idle.values() for arm in waiting)]:
            arm.close()
        self._arms = [None] * self.num_envs
        self._idle = {task: [] for task in self._tasks}

    def _start(self, n: int, seed: int) -> None:
        number = seed % len(self._tasks)
        self._state_NS[n, :OBSERVED] = self._seat(n, self._tasks[number]).reset(seed % (1 << 32))
        if self.config.task_id:
            self._state_NS[n, OBSERVED:] = np.arange(len(self._tasks)) == number

    def _seat(self, n: int, task: str) -> Arm:
        """The arm of environment n before this task; arms before others wait until they are needed."""
        from rlinf_sim_metaworld.arm import Arm

        seated = self._arms[n]
        if seated is None or seated.task != task:
            if seated is not None:
                self._idle[seated.task].append(seated)
            waiting = self._idle[task]
            self._arms[n] = seated = waiting.pop() if waiting else Arm(task)
        return seated

    def _act(self, n: int, action: NDArray[Any]) -> tuple[float, bool, bool]:
        seen, reward, success = self._arms[n].step(action)  # type: ignore[union-attr]
        self._state_NS[n, :OBSERVED] = seen
        return self._paid(reward, success), success, success

    def _paid(self, reward: float, success: bool) -> float:
        if self.config.reward == "dense":
            return reward
        return float(success) if self.config.reward == "sparse" else reward / 10.0 - 1.0

    def _observation(self, changed: Sequence[int]) -> Observation:
        """What all show; pictures of those that have changed are drawn."""
        config = self.config
        for camera, shown in self._frames.items():
            for n in changed:
                shown[n] = self._draw(n, camera, config.image_size)
        return Observation(
            self._state_NS.copy() if config.state else None,
            {camera: shown.copy() for camera, shown in self._frames.items()},
            [self._told(seed) for seed in self._seeds] if config.instruction else None,
        )

    def _told(self, seed: int) -> str:
        """The task of the episode of this seed, such as "drawer open"."""
        return self._tasks[seed % len(self._tasks)].removesuffix("-v3").replace("-", " ")

    def _draw(self, n: int, camera: str, size: int) -> NDArray[np.uint8]:
        arm = self._arms[n]
        return np.zeros((size, size, 3), np.uint8) if arm is None else self._pictures.draw(arm, camera, size)
