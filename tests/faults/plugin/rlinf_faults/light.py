"""What fails without torch: rewards, rows and a simulator that visit their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_core.api.reward import Reward, RewardItem
from rlinf_core.api.simulator import Observation, Simulator, Space, Transition
from rlinf_core.builtin.datasets.synthetic import SyntheticDataset
from rlinf_core.types import Row
from rlinf_faults.strike import visit


class FaultyReward(Reward):
    """The share of a's in a response."""

    def score(self, items: Sequence[RewardItem]) -> list[float]:
        visit("reward.score")
        return [item.response.count("a") / max(1, len(item.response)) for item in items]


class FaultyDataset(SyntheticDataset):
    """Some letters."""

    def draw(self, rng: Any) -> tuple[str, Row]:
        visit("data.row")
        text = "".join(rng.choice("abcde") for _ in range(6))
        return text, Row(prompt=text, answer="")


class FaultySimulator(Simulator):
    """Environment n begins at its seed's place on a line, and moves by each action; near 0 is better."""

    action_space = Space(shape=(1,), low=-1.0, high=1.0)
    observation_space = {"state": Space(shape=(1,))}  # noqa: RUF012
    restarts = True

    def __init__(self, config: Any, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.max_episode_steps = config.limit
        self._place_N = np.zeros((num_envs, 1), dtype=np.float32)
        self._age_N = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> Observation:
        visit("simulator.reset")
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        visit("simulator.restart")
        for n, seed in seeds.items():
            self._place_N[n], self._age_N[n] = (seed % 7) / 7.0, 0
        return self._shown()

    def step(self, actions: Any) -> Transition:
        visit("simulator.step")
        shape = actions.shape[:2]
        self._place_N += actions.sum(axis=1) * 0.1
        self._age_N += shape[1]
        nothing_NC = np.zeros(shape, dtype=bool)
        late_NC = nothing_NC.copy()
        late_NC[:, -1] = self._age_N >= self.max_episode_steps
        rewards_NC = np.repeat(-np.abs(self._place_N), shape[1], axis=1).astype(np.float32)
        ended = late_NC.any()
        shown = self._shown()
        return Transition(
            shown, rewards_NC, nothing_NC, late_NC, ~nothing_NC, nothing_NC.any(1), shown if ended else None
        )

    def _shown(self) -> Observation:
        return Observation(state=self._place_N.copy())
