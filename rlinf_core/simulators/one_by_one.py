"""Environments that one process steps one after another.

Axes: N environments, C actions of a chunk.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api.simulator import Observation, Simulator, Transition

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OneByOne(Simulator):
    """A subclass tells what one environment does; here chunks are played, episodes end by the time limit, and
    environments whose episode has ended start again, from seeds that follow from theirs.

    It sets `max_episode_steps`.
    """

    restarts = True

    def __init__(self, config: Any, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self._seeds: list[int] = [0] * num_envs  # of the running episodes
        self._steps_N = np.zeros(num_envs, dtype=np.int64)
        self._running_N = np.zeros(num_envs, dtype=bool)

    @abstractmethod
    def _start(self, n: int, seed: int) -> None:
        """Put environment n to where an episode of this seed begins."""

    @abstractmethod
    def _act(self, n: int, action: Any) -> tuple[float, bool, bool]:
        """Execute one action, which `_steps_N` counts already: the reward, whether the episode has succeeded,
        and whether it is over, by success or otherwise."""

    @abstractmethod
    def _observation(self, changed: Sequence[int]) -> Observation:
        """What all show; these environments have changed since the last time."""

    def _commands(self, actions: NDArray[Any]) -> NDArray[Any]:
        """What `_act` is told, `[N, C, ...]`: the actions."""
        return actions

    def _settle(self, n: int) -> None:
        """The chunk of environment n has been executed."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Each environment starts where its own seed says."""
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """As `reset`, of some."""
        for n, seed in seeds.items():
            self._begin(n, int(seed))
        return self._observation([*seeds])

    def step(self, actions: NDArray[Any]) -> Transition:
        """Every environment executes its chunk up to the end of its episode, then starts again or rests."""
        outcome = Transition.empty(*actions.shape[:2])
        acting = np.flatnonzero(self._running_N).tolist()
        commands = self._commands(actions)
        ended = [n for n in acting if self._play(n, commands[n], outcome)]
        outcome.observation = self._observation(acting)
        if ended:
            outcome.final_observation = outcome.observation
            self._renew(ended, outcome)
        return outcome

    def _begin(self, n: int, seed: int) -> None:
        self._seeds[n], self._steps_N[n], self._running_N[n] = seed, 0, True
        self._start(n, seed)

    def _play(self, n: int, commands_C: NDArray[Any], outcome: Transition) -> bool:
        """Execute the chunk of environment n; True if its episode has ended."""
        success = over = late = False
        for c, command in enumerate(commands_C):
            self._steps_N[n] += 1
            outcome.rewards_NC[n, c], success, over = self._act(n, command)
            late = bool(self._steps_N[n] >= self.max_episode_steps) and not over
            outcome.executed_NC[n, c] = True
            outcome.terminated_NC[n, c], outcome.truncated_NC[n, c] = over, late
            if over or late:
                break
        self._settle(n)
        outcome.success_N[n] = success
        return over or late

    def _renew(self, ended: Sequence[int], outcome: Transition) -> None:
        if not self.auto_reset:
            self._running_N[list(ended)] = False
            return
        for n in ended:
            self._begin(n, int(np.random.default_rng(self._seeds[n]).integers(1 << 62)))
        outcome.observation = self._observation(ended)
