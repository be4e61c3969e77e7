"""Registered Gymnasium environments, stepped one after another in this process.

Axes: N environments, C actions of a chunk, A action dimensions, S state size.
"""

from __future__ import annotations

import logging
import math
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.errors import ConfigError, PluginError
from rlinf_core.media.offscreen import graphics
from rlinf_sim_gymnasium.config import GymnasiumConfig
from rlinf_sim_gymnasium.layout import ActionLayout, flattener, state_size
from rlinf_sim_gymnasium.memory import remember, restore
from rlinf_sim_gymnasium.registry import Env, find, make, registered
from rlinf_sim_gymnasium.rendering import Pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
CAMERA = "main"


class GymnasiumSimulator(Simulator):
    """N environments of one id. The first success of an episode ends it, as a termination."""

    config: GymnasiumConfig
    restarts = True

    def __init__(self, config: GymnasiumConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        spec = find(config)
        self._envs: list[Env] = [make(config, spec) for _ in range(num_envs)]
        first = self._envs[0]
        self.max_episode_steps = config.max_episode_steps or int(spec.max_episode_steps or 0)
        self._actions = ActionLayout(first.action_space, config.id)
        self.action_space = self._actions.space
        self.observation_space = {}
        size = 0
        if config.state:
            size = state_size(first.observation_space, config.id)
            self.observation_space["state"] = Space(shape=(size,), low=-np.inf, high=np.inf)
            self._flat = flattener(first.observation_space)
        if config.images:
            if first.render_mode is None:
                raise ConfigError(f"simulator.images (gymnasium): {config.id} does not render pictures")
            pixels = (config.image_size, config.image_size, 3)
            self.observation_space[f"images/{CAMERA}"] = Space(shape=pixels, low=0.0, high=255.0)
            self._frames_NHW3 = np.zeros((num_envs, *pixels), dtype=np.uint8)
        self._pictures = Pictures(self._envs, config.shadows)
        if config.images and self._pictures.by_mujoco:
            graphics("gymnasium")  # where nothing can draw, say so before anything is played
        self._state_NS = np.zeros((num_envs, size), dtype=np.float32)
        self._zeros_S = np.zeros(size, dtype=np.float32)  # times what is not finite is not a number
        self._return_N = np.zeros(num_envs)  # of the episodes that run
        self._running_N = np.zeros(num_envs, dtype=bool)
        self._shown = Observation()
        self._warned = False

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Each environment starts where its own seed says."""
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """As `reset`, of some."""
        for n, seed in seeds.items():
            self._return_N[n] = 0.0
            self._running_N[n] = True
            self._show(n, self._envs[n].reset(seed=int(seed))[0])
        return self._observation([*seeds])

    def step(self, actions: NDArray[Any]) -> Transition:
        """Every environment executes its chunk up to the end of its episode, then starts again or rests."""
        outcome = Transition.empty(*actions.shape[:2])
        acting = np.flatnonzero(self._running_N).tolist()
        told = self._actions.to_environment(actions)
        for n in acting:
            for c in range(actions.shape[1]):
                if self._act(n, c, told[n][c], outcome):
                    break
        self._renew(outcome, acting)
        return outcome

    def tasks(self) -> list[str]:
        """Registered ids, those of `imports` among them."""
        return registered()

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` of `render_size`."""
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """As `render`."""
        if self._envs[0].render_mode is None:
            raise PluginError(f"simulator gymnasium: {self.config.id} does not render pictures")
        return np.stack([self._pictures.draw(n, self.config.render_size) for n in envs])

    def save_state(self) -> bytes:
        """Physics, counters, random generators, and what was shown: drawing again may move the physics."""
        states = [remember(env) for env in self._envs]
        counters = (self._return_N, self._running_N)
        return zlib.compress(pickle.dumps((self.config.id, states, *counters, self._shown)), level=1)

    def load_state(self, state: bytes) -> Observation:
        """Only bytes of `save_state` that you trust: they are unpickled."""
        name, states, return_N, running_N, shown = pickle.loads(zlib.decompress(state))  # noqa: S301 - what `save_state` of this process gave
        if (name, len(states)) != (self.config.id, self.num_envs):
            raise PluginError(
                f"simulator gymnasium: a state of {len(states)} x {name} does not fit {self.num_envs} x "
                f"{self.config.id}"
            )
        for env, each in zip(self._envs, states, strict=True):
            restore(env, each)
        if shown.state is not None:
            self._state_NS[...] = shown.state
        self._return_N[:], self._running_N[:] = return_N, running_N
        if shown.images:
            self._frames_NHW3[...] = shown.images[CAMERA]
        self._shown = shown
        return self._shown

    def offload(self) -> None:
        """Free the graphics contexts; the next picture makes another."""
        self._pictures.close()

    def close(self) -> None:
        """Free the graphics contexts and the environments."""
        self._pictures.close()
        for env in self._envs:
            env.close()

    def _act(self, n: int, c: int, action: Any, outcome: Transition) -> bool:
        """Execute action c of environment n; True if its episode has ended."""
        seen, reward, failed, late, info = self._envs[n].step(action)
        sound = self._show(n, seen) and math.isfinite(reward)
        if not sound:
            self._warn(n)
        success = bool(info.get("is_success", info.get("success", False)))
        terminated = bool(failed or success or not sound)
        outcome.executed_NC[n, c] = True
        outcome.rewards_NC[n, c] = reward if sound else 0.0
        outcome.terminated_NC[n, c] = terminated
        outcome.truncated_NC[n, c] = late and not terminated
        self._return_N[n] += outcome.rewards_NC[n, c]
        outcome.success_N[n] = success or ((terminated or late) and self._paid(n))
        return terminated or late

    def _paid(self, n: int) -> bool:
        enough = self.config.success_return
        return enough is not None and bool(self._return_N[n] >= enough)

    def _renew(self, outcome: Transition, acting: Sequence[int]) -> None:
        """Start ended episodes again, or let their environments rest; show what there is now."""
        outcome.observation = self._observation(acting)
        ended = np.flatnonzero((outcome.terminated_NC | outcome.truncated_NC).any(axis=1)).tolist()
        if not ended:
            return
        outcome.final_observation = outcome.observation
        if not self.auto_reset:
            self._running_N[ended] = False
            return
        for n in ended:
            self._return_N[n] = 0.0
            self._show(n, self._envs[n].reset()[0])
        outcome.observation = self._observation(ended)

    def _show(self, n: int, seen: Any) -> bool:  # Any: an observation of the environment
        """Keep what environment n shows; False if a number of it is not finite."""
        if not self.config.state:
            return True
        flat_S = self._flat(seen)
        self._state_NS[n] = flat_S
        return math.isfinite(flat_S.dot(self._zeros_S))

    def _observation(self, changed: Sequence[int]) -> Observation:
        """What all show; pictures of those that have changed are drawn."""
        images = {}
        if self.config.images:
            for n in changed:
                self._frames_NHW3[n] = self._pictures.draw(n, self.config.image_size)
            images[CAMERA] = self._frames_NHW3.copy()
        self._shown = Observation(self._shown_states(), images)
        return self._shown

    def _shown_states(self) -> NDArray[np.float32] | None:
        return self._state_NS.copy() if self.config.state else None

    def _warn(self, n: int) -> None:
        self._state_NS[n] = np.nan_to_num(self._state_NS[n])
        if not self._warned:
            self._warned = True
            _log.warning(
                "simulator gymnasium: %s became unstable: a number is not finite; such episodes end",
                self.config.id,
            )
