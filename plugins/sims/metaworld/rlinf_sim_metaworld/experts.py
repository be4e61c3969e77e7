"""The scripted policies that come with Meta-World. Axes: S state size, A action dimensions."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def expert_action(task: str, state_S: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[A]` within -1 and 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that actions are to be clipped, as they are here
        action_A = _policy(task).get_action(state_S.astype(np.float64))
    clipped_A: NDArray[np.float32] = np.clip(action_A, -1.0, 1.0).astype(np.float32)
    return clipped_A


@cache
def _policy(task: str) -> Any:  # Any: Meta-World's untyped policy, which keeps nothing between actions
    from metaworld.policies import ENV_POLICY_MAP

    policies: Any = ENV_POLICY_MAP
    return policies[task]()
