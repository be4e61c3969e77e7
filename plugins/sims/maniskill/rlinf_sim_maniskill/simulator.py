"""Tasks of ManiSkill: scenes one by one on the CPU, or all in one batch on a GPU.

Axes: N environments, C actions of a chunk, A action dimensions, S state size.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.errors import ConfigError, PluginError
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.drawing import NONE, renderer
from rlinf_sim_maniskill.registry import find, registered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_sim_maniskill.world import World

_log = logging.getLogger(__name__)


class ManiSkillSimulator(Simulator):
    """N environments of one task. Success and failure end an episode as terminations, unless they are to be
    ignored."""

    config: ManiSkillConfig
    restarts = True

    def __init__(self, config: ManiSkillConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self._spec = find(config)
        self.max_episode_steps = config.max_episode_steps or int(self._spec.max_episode_steps or 0)
        if not self.max_episode_steps:
            raise ConfigError(
                f"simulator.max_episode_steps (maniskill): {config.id} has no limit of its own; set one"
            )
        self._cuda = self._choose_device()
        self._worlds = self._make_worlds()
        self._mirror: World | None = None  # of worlds that are not drawn, for people
        self.action_space = self._worlds[0][1].actions.space
        self._seeds = [0] * num_envs  # of the running episodes
        self._steps_N = np.zeros(num_envs, dtype=np.int64)
        self._running_N = np.zeros(num_envs, dtype=bool)
        self._succeeded_N = np.zeros(num_envs, dtype=bool)
        self._warned = False
        self._state_NS, self._frames = self._first_look()
        self.observation_space = self._spaces()

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Each environment starts where its own seed says."""
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """As `reset`, of some."""
        for first, world in self._worlds:
            chosen = {n - first: int(seed) for n, seed in seeds.items() if first <= n < first + world.count}
            if chosen:
                world.start(chosen)
                self._keep(first, world, np.isin(np.arange(world.count), [*chosen]))
        for n, seed in seeds.items():
            self._seeds[n], self._steps_N[n] = int(seed), 0
            self._running_N[n], self._succeeded_N[n] = True, False
        return self._observation()

    def step(self, actions: NDArray[Any]) -> Transition:
        """Every environment executes its chunk up to the end of its episode, then starts again or rests."""
        outcome = Transition.empty(*actions.shape[:2])
        if self.config.ignore_terminations:
            outcome.success_NC = np.zeros_like(outcome.terminated_NC)
        acting_N = self._running_N.copy()
        for first, world in self._worlds:
            self._play(first, world, actions, outcome)
        outcome.success_N = self._succeeded_N & acting_N
        outcome.observation = self._observation()
        ended = np.flatnonzero((outcome.terminated_NC | outcome.truncated_NC).any(axis=1)).tolist()
        if ended:
            outcome.final_observation = outcome.observation
            self._renew(ended, outcome)
        return outcome

    def tasks(self) -> list[str]:
        """Registered ids, those of `imports` among them."""
        return sorted(registered())

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` by the task's camera for people."""
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """Scenes that have no looks are drawn in one that has, put into their state."""
        drawn: dict[int, NDArray[np.uint8]] = {}
        for first, world in self._worlds:
            chosen = [n - first for n in envs if first <= n < first + world.count]
            if chosen and self.config.images:
                pictures = dict(enumerate(world.render()))
            else:
                pictures = self._reflect(first, world, chosen) if chosen else {}
            drawn |= {first + n: pictures[n] for n in chosen}
        return np.stack([drawn[n] for n in envs])

    def save_state(self) -> bytes:
        """Physics, what the task keeps beside it, and what was shown. This simulator is put into the state
        too, so that it goes on as those do that load it."""
        worlds = [world.remember() for _, world in self._worlds]
        for (first, world), saved in zip(self._worlds, worlds, strict=True):
            world.restore(saved, self._seeds_of(first, world))
        own = (self._seeds, self._steps_N, self._running_N, self._succeeded_N, self._state_NS, self._frames)
        return zlib.compress(pickle.dumps((self.config.id, worlds, own)), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        name, worlds, own = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        seeds, steps_N, running_N, succeeded_N, state_NS, frames = own
        if (name, len(seeds), len(worlds)) != (self.config.id, self.num_envs, len(self._worlds)):
            raise PluginError(
                f"simulator maniskill: a state of {len(seeds)} x {name} does not fit {self.num_envs} x "
                f"{self.config.id}"
            )
        self._seeds = list(seeds)
        for (first, world), saved in zip(self._worlds, worlds, strict=True):
            world.restore(saved, self._seeds_of(first, world))
        self._steps_N[:], self._running_N[:], self._succeeded_N[:] = steps_N, running_N, succeeded_N
        self._state_NS[...] = state_NS
        for camera, frame_NHW3 in frames.items():
            self._frames[camera][...] = frame_NHW3
        return self._observation()

    def close(self) -> None:
        """Free all scenes."""
        for _, world in self._worlds:
            world.close()
        if self._mirror is not None:
            self._mirror.close()
        self._worlds, self._mirror = [], None

    def _reflect(self, first: int, world: World, chosen: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        if self._mirror is None:
            self._mirror = self._world(1, renderer(self._cuda))
        saved, pictures = world.remember(), {}
        for n in chosen:
            self._mirror.restore(_row(saved, n, world.count), {0: self._seeds[first + n]})
            pictures[n] = self._mirror.render()[0]
        return pictures

    def _choose_device(self) -> bool:
        """Whether physics runs on a GPU."""
        import torch

        there = torch.cuda.is_available()
        if self.config.device == "cuda" and not there:
            raise ConfigError(
                "simulator.device (maniskill): cuda, but torch finds no CUDA device in this environment; use "
                "auto or cpu"
            )
        return there and self.num_envs > 1 and self.config.device != "cpu"

    def _make_worlds(self) -> list[tuple[int, World]]:
        """With the number of the first environment of each."""
        count = self.num_envs if self._cuda else 1
        by = renderer(self._cuda) if self.config.images else NONE
        try:
            worlds = [self._world(count, by)]
        except (AttributeError, RuntimeError):  # a few tasks read the looks of what they build
            if by != NONE:
                raise
            by = renderer(self._cuda)
            worlds = [self._world(count, by)]
        return [
            (n, worlds.pop() if worlds else self._world(count, by)) for n in range(0, self.num_envs, count)
        ]

    def _world(self, count: int, by: str) -> World:
        from rlinf_sim_maniskill.world import World

        return World(self._spec, self.config, count, by)

    def _seeds_of(self, first: int, world: World) -> dict[int, int]:
        return {n: self._seeds[first + n] for n in range(world.count)}

    def _first_look(self) -> tuple[NDArray[np.float32], dict[str, NDArray[np.uint8]]]:
        """Room for what all environments show."""
        state, images = self._worlds[0][1].look()
        size = 0 if state is None else state.shape[1]
        shapes = {camera: (self.num_envs, *frame.shape[1:]) for camera, frame in images.items()}
        return (
            np.zeros((self.num_envs, size), dtype=np.float32),
            {camera: np.zeros(shape, dtype=np.uint8) for camera, shape in shapes.items()},
        )

    def _spaces(self) -> dict[str, Space]:
        spaces = {
            f"images/{camera}": Space(shape=frame.shape[1:], low=0.0, high=255.0)
            for camera, frame in self._frames.items()
        }
        if self.config.state != "none":
            spaces["state"] = Space(shape=self._state_NS.shape[1:], low=-np.inf, high=np.inf)
        return spaces

    def _play(self, first: int, world: World, actions: NDArray[Any], outcome: Transition) -> None:
        """Execute the chunks of the environments of one world. Those whose episode has ended are moved on
        with the rest of a batch, but nothing of it is kept."""
        rows = slice(first, first + world.count)
        last = actions.shape[1] - 1
        for c in range(actions.shape[1]):
            running_N = self._running_N[rows] & ~_ended(outcome)[rows]
            if not running_N.any():
                return
            acted = world.act(actions[rows, c], look=c == last)
            self._steps_N[rows] += running_N
            self._succeeded_N[rows] |= acted.success_N & running_N
            terminated_N = ~acted.sound_N
            if not self.config.ignore_terminations:
                terminated_N |= acted.success_N | acted.failure_N
            late_N = self._steps_N[rows] >= self.max_episode_steps
            outcome.executed_NC[rows, c] = running_N
            outcome.rewards_NC[rows, c] = np.where(running_N & acted.sound_N, acted.rewards_N, 0.0)
            outcome.terminated_NC[rows, c] = terminated_N & running_N
            outcome.truncated_NC[rows, c] = late_N & ~terminated_N & running_N
            if outcome.success_NC is not None:
                outcome.success_NC[rows, c] = acted.success_N & running_N
            if c == last or (_ended(outcome)[rows] & running_N).any():
                self._keep(first, world, running_N)
            if not acted.sound_N[running_N].all():
                self._warn()

    def _keep(self, first: int, world: World, chosen_N: NDArray[np.bool_]) -> None:
        """Remember what these environments of a world show now."""
        rows = np.flatnonzero(chosen_N) + first
        state, images = world.look()
        if state is not None:
            self._state_NS[rows] = np.nan_to_num(state[chosen_N])
        for camera, frame in images.items():
            self._frames[camera][rows] = frame[chosen_N]

    def _renew(self, ended: Sequence[int], outcome: Transition) -> None:
        if not self.auto_reset:
            self._running_N[list(ended)] = False
            return
        self.restart({n: int(np.random.default_rng(self._seeds[n]).integers(1 << 62)) for n in ended})
        outcome.observation = self._observation()

    def _observation(self) -> Observation:
        texts = [world.instruction() for _, world in self._worlds]
        told = [text for some in texts if some is not None for text in some]
        return Observation(
            state=self._state_NS.copy() if "state" in self.observation_space else None,
            images={camera: frame.copy() for camera, frame in self._frames.items()},
            instruction=told or None,
        )

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "simulator maniskill: %s became unstable: a number is not finite; such episodes end",
                self.config.id,
            )


def _ended(outcome: Transition) -> NDArray[np.bool_]:
    ended_N: NDArray[np.bool_] = np.any(outcome.terminated_NC | outcome.truncated_NC, axis=1)
    return ended_N


def _row(saved: Any, n: int, count: int) -> Any:  # Any: arrays by name, nested
    """Of one environment, from what a world of several remembers."""
    if isinstance(saved, dict):
        return {name: _row(value, n, count) for name, value in saved.items()}
    batched = isinstance(saved, np.ndarray) and saved.shape[:1] == (count,)
    return saved[n : n + 1] if batched else saved
