"""Tasks of a LIBERO suite, stepped one after another in this process.

Axes: N environments, C actions of a chunk, A action dimensions, S state size.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.errors import PluginError
from rlinf_sim_libero.config import STEP_LIMITS, LiberoConfig
from rlinf_sim_libero.installation import installation
from rlinf_sim_libero.scene import ACTION, STATE, Scene, Seat
from rlinf_sim_libero.stage import Stage
from rlinf_sim_libero.tasks import chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOR_PEOPLE = "agentview"


class LiberoSimulator(Simulator):
    """N environments. The seed of an episode says its task and its initial state; success ends it."""

    config: LiberoConfig
    restarts = True

    def __init__(self, config: LiberoConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self._found = installation(config.assets)
        self._tasks = chosen(self._found, config.suite, str(config.task))
        self._stage = Stage(self._found, config, self._tasks)
        self._stage.prepare()
        self.max_episode_steps = config.max_episode_steps or STEP_LIMITS[config.suite]
        self.action_space = Space(shape=(ACTION,), low=-1.0, high=1.0)
        pixels = (config.image_size, config.image_size, 3)
        self.observation_space = {
            f"images/{camera}": Space(shape=pixels, low=0.0, high=255.0) for camera in config.cameras
        }
        if config.state:
            self.observation_space["state"] = Space(shape=(STATE,), low=-np.inf, high=np.inf)
        self._state_NS = np.zeros((num_envs, STATE), dtype=np.float32)
        self._images = {name: np.zeros((num_envs, *pixels), dtype=np.uint8) for name in config.cameras}
        self._seats = [Seat() for _ in range(num_envs)]

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Each environment starts where its own seed says."""
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """As `reset`, of some."""
        for n, seed in self._by_task(seeds):
            self._start(n, seed)
        return self._observation()

    def step(self, actions: NDArray[Any]) -> Transition:
        """Every environment executes its chunk up to the end of its episode, then starts again or rests."""
        outcome = Transition.empty(*actions.shape[:2])
        acting = [n for n, seat in enumerate(self._seats) if seat.running]
        acting.sort(key=lambda n: self._seats[n].task)  # each scene is looked for once
        ended = [n for n in acting if self._act(n, actions[n], outcome)]
        outcome.observation = self._observation()
        if ended:
            outcome.final_observation = outcome.observation
            self._renew(ended, outcome)
        return outcome

    def tasks(self) -> list[str]:
        """Names of the suite's tasks."""
        return [task.name for task in chosen(self._found, self.config.suite, "all")]

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` from the camera in front, as a person sees it; black before the first episode."""
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """As `render`."""
        size = self.config.image_size
        pictures = np.zeros((len(envs), size, size, 3), dtype=np.uint8)
        for k, n in enumerate(envs):
            seat = self._seats[n]
            if seat.task >= 0:
                self._stage.scene(seat.task).show(seat)
                pictures[k] = self._stage.picture(seat.task, FOR_PEOPLE, "upright")
        return pictures

    def save_state(self) -> bytes:
        """The episodes, and what they show."""
        self._stage.keep()
        kept = (self._key(), self._seats, self._state_NS, self._images)
        return zlib.compress(pickle.dumps(kept), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        key, seats, state_NS, images = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        if key != self._key():
            raise PluginError(
                f"simulator libero: a state of {key} does not fit {self._key()} (suite, tasks, initial "
                "states, settling steps, environments, what is shown)"
            )
        self._seats = seats
        self._state_NS[...] = state_NS
        for name, pictures_NHW3 in images.items():
            self._images[name][...] = pictures_NHW3
        return self._observation()

    def offload(self) -> None:
        """Free the graphics contexts; the next picture makes others."""
        self._stage.offload()

    def close(self) -> None:
        """Free scenes and graphics contexts."""
        self._stage.close()

    def _start(self, n: int, seed: int) -> None:
        task, number = self._place(seed)
        seat = self._seats[n] = Seat(seed, task, running=True)
        scene = self._stage.scene(task)
        scene.begin(seat, number)
        self._show(n, scene)

    def _place(self, seed: int) -> tuple[int, int]:
        """Task and initial state of a seed: all tasks in turn, then the next initial state."""
        rest, task = divmod(seed, len(self._tasks))
        return task, rest % self._stage.count(task)

    def _act(self, n: int, actions_CA: NDArray[Any], outcome: Transition) -> bool:
        """Execute the chunk of environment n; True if its episode has ended."""
        seat = self._seats[n]
        scene = self._scene(seat)
        success = late = False
        for c, action_A in enumerate(actions_CA):
            success = scene.step(action_A)
            seat.steps += 1
            late = seat.steps >= self.max_episode_steps and not success
            outcome.executed_NC[n, c] = True
            outcome.rewards_NC[n, c] = success
            outcome.terminated_NC[n, c], outcome.truncated_NC[n, c] = success, late
            if success or late:
                break
        self._show(n, scene)
        outcome.success_N[n] = success
        return success or late

    def _renew(self, ended: Sequence[int], outcome: Transition) -> None:
        """Start ended episodes again, or let their environments rest."""
        for n in ended:
            self._seats[n].running = False
        if not self.auto_reset:
            return
        seeds = {n: int(np.random.default_rng(self._seats[n].seed).integers(1 << 62)) for n in ended}
        outcome.observation = self.restart(seeds)

    def _by_task(self, seeds: Mapping[int, int]) -> list[tuple[int, int]]:
        return sorted(seeds.items(), key=lambda item: self._place(int(item[1]))[0])

    def _scene(self, seat: Seat) -> Scene:
        """Of the seat's task, with its episode in it."""
        scene = self._stage.scene(seat.task)
        scene.resume(seat)
        return scene

    def _show(self, n: int, scene: Scene) -> None:
        """Keep what environment n, which is in its scene, shows."""
        self._state_NS[n] = scene.state()
        for camera, pictures_NHW3 in self._images.items():
            pictures_NHW3[n] = self._stage.picture(self._seats[n].task, camera, self.config.view)

    def _observation(self) -> Observation:
        images = {camera: pictures_NHW3.copy() for camera, pictures_NHW3 in self._images.items()}
        told = [self._tasks[seat.task].instruction if seat.task >= 0 else "" for seat in self._seats]
        return Observation(self._state_NS.copy() if self.config.state else None, images, told)

    def _key(self) -> tuple[object, ...]:
        """What a saved state has to agree with."""
        config = self.config
        shown = (config.state, *config.cameras, config.image_size)
        return (config.suite, config.task, config.init_states, config.settle_steps, self.num_envs, shown)
