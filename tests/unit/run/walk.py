"""A simulator with an expert whose actions are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition


class Walk(Simulator):
    """Points that walk to 1 from where their seed puts them; they have ten steps of at most 0.2."""

    action_space = Space(shape=(1,), low=-0.2, high=0.2)
    observation_space = {"state": Space(shape=(1,))}  # noqa: RUF012 - as the interface declares it
    max_episode_steps = 10
    starts: tuple[float, ...] = (0.5, -0.5, -3.0)  # from the last one nobody arrives

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.position_N = np.array([self.starts[seed % len(self.starts)] for seed in seeds])
        self.steps_N = np.zeros(len(seeds), dtype=int)
        self.executed: list[Any] = []
        return self._shown()

    def step(self, actions: Any) -> Transition:
        self.executed.append(actions[:, 0, 0].copy())
        self.position_N = self.position_N + actions[:, 0, 0]
        self.steps_N += 1
        success_N = np.abs(self.position_N - 1) < 0.15
        late_N = (self.steps_N >= self.max_episode_steps) & ~success_N
        return Transition(
            self._shown(),
            np.full((len(success_N), 1), -1.0, dtype=np.float32),
            success_N[:, None],
            late_N[:, None],
            np.ones((len(success_N), 1), dtype=bool),
            success_N,
            self._shown(),
        )

    def expert(self, speed_N: Sequence[float]) -> Any:
        way_N = np.clip(1 - self.position_N, -0.2, 0.2) * np.array(speed_N)
        return way_N[:, None].astype(np.float32)

    def _shown(self) -> Observation:
        return Observation(self.position_N[:, None].astype(np.float32))
