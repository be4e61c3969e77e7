"""A simulator that computes nothing: what remains of a step is how its outcome travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition

STATE, PIXELS = (17,), (128, 128, 3)


class StillPictures(Simulator):
    """Shows the same all the time."""

    action_space = Space(shape=(6,))
    observation_space = {"state": Space(shape=STATE), "images/main": Space(shape=PIXELS)}  # noqa: RUF012
    max_episode_steps = 1_000_000

    def __init__(self, config: Any, num_envs: int, seed: int) -> None:  # Any: it has no settings
        super().__init__(config, num_envs, seed)
        state = np.zeros((num_envs, *STATE), dtype=np.float32)
        pictures = np.zeros((num_envs, *PIXELS), dtype=np.uint8)
        self._shown = Observation(state, {"main": pictures})

    def reset(self, seeds: Sequence[int]) -> Observation:
        return self._shown

    def step(self, actions: Any) -> Transition:  # Any: an array
        nothing = np.zeros(actions.shape[:2], dtype=bool)
        rewards = np.zeros(actions.shape[:2], dtype=np.float32)
        return Transition(self._shown, rewards, nothing, nothing, ~nothing, nothing.any(1))
