"""What the actions of an episode pay in training, made of what the simulator pays for them.

Axes: N environments, R environments whose episode runs, C actions of a chunk.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

RewardShaping = Literal["none", "success", "relative"]


class Shaping:
    """`none`: the simulator's rewards. `success`: 1 for the action that succeeds, 0 for any other.
    `relative`: how much more an action pays than the one before it, the first than 0; so what an episode pays
    adds up to the simulator's reward for its last action."""

    def __init__(self, kind: RewardShaping, count: int) -> None:
        self._kind = kind
        self._last_N = np.zeros(count, dtype=np.float32)  # what the last executed action paid

    def begin(self, n: int) -> None:
        """An episode starts in environment n."""
        self._last_N[n] = 0.0

    def paid(
        self,
        at: NDArray[np.int64],
        rewards_RC: NDArray[np.float32],
        executed_RC: NDArray[np.bool_],
        success_R: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """`[R, C]` of one decision in the environments at these places; 0 where nothing was executed."""
        rewards_RC = np.where(executed_RC, rewards_RC, np.float32(0.0))
        if self._kind == "none":
            return rewards_RC
        counts_R = executed_RC.sum(1)
        rows, lasts = np.flatnonzero(counts_R), counts_R[counts_R > 0] - 1
        if self._kind == "success":
            paid_RC = np.zeros_like(rewards_RC)
            paid_RC[rows, lasts] = success_R[rows]
            return paid_RC
        before_RC = np.concatenate([self._last_N[at, None], rewards_RC[:, :-1]], axis=1)
        self._last_N[at[rows]] = rewards_RC[rows, lasts]
        return np.where(executed_RC, rewards_RC - before_RC, np.float32(0.0))
