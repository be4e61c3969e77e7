"""How Gymnasium's spaces become flat float32 states, one box or a number of discrete actions.

Axes: S state size, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_core.api import Space
from rlinf_core.errors import ConfigError

Flatten = Callable[[Any], NDArray[np.float32]]  # Any: an observation of the environment


def state_size(space: spaces.Space[Any], name: str) -> int:
    """S. Raises `ConfigError` for observations that have no fixed size."""
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return int(np.prod(space.shape))
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.Dict():
            return sum(state_size(part, name) for part in space.values())
        case spaces.Tuple():
            return sum(state_size(part, name) for part in space)
    raise ConfigError(
        f"simulator.id (gymnasium): {name} shows {space}; states are made of Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict or Tuple of these"
    )


def flattener(space: spaces.Space[Any]) -> Flatten:
    """A function to `[S]`: Dict entries in the order of their sorted keys, discrete ones as one-hot."""
    match space:
        case spaces.Discrete():
            return _one_hot(np.array([space.n]), np.array([space.start]))
        case spaces.MultiDiscrete():
            return _one_hot(space.nvec.ravel(), space.start.ravel())
        case spaces.Dict():
            named = [(key, flattener(space[key])) for key in sorted(space.keys())]
            return lambda seen: np.concatenate([part(seen[key]) for key, part in named])
        case spaces.Tuple():
            parts = [flattener(part) for part in space]
            return lambda seen: np.concatenate([part(value) for part, value in zip(parts, seen, strict=True)])
    return lambda seen: np.asarray(seen, dtype=np.float32).ravel()


def _one_hot(counts: NDArray[np.integer], starts: NDArray[np.integer]) -> Flatten:
    offsets = np.cumsum(counts) - counts - starts
    size = int(counts.sum())

    def flat(seen: Any) -> NDArray[np.float32]:  # Any: an integer or an array of them
        vector_S = np.zeros(size, dtype=np.float32)
        vector_S[np.ravel(seen) + offsets] = 1.0
        return vector_S

    return flat


class ActionLayout:
    """What the policy is told of the actions, and how its actions become the environment's.

    A box whose dimensions have different bounds is shown as -1..1, and scaled to each dimension's own.
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self.to_environment: Callable[[NDArray[Any]], Any]  # `[N, C, ...]`, each action at [n][c]
        if isinstance(space, spaces.Discrete):
            self.space = Space(n=int(space.n))
            self.to_environment = lambda actions_NC: (actions_NC + int(space.start)).tolist()
        elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            self._set_box(space)
        else:
            raise ConfigError(
                f"simulator.id (gymnasium): {name} takes {space}; actions are a Box of floats or Discrete"
            )

    def _set_box(self, space: spaces.Box) -> None:
        low_A, high_A = space.low.ravel(), space.high.ravel()
        equal = bool((low_A == low_A[0]).all() and (high_A == high_A[0]).all())
        scaled = not equal and bool(np.isfinite([low_A, high_A]).all())
        if equal:
            self.space = Space(shape=low_A.shape, low=float(low_A[0]), high=float(high_A[0]))
        elif scaled:
            self.space = Space(shape=low_A.shape)
        else:
            self.space = Space(shape=low_A.shape, low=-np.inf, high=np.inf)
        centre_A = (high_A + low_A) / 2 if scaled else np.zeros_like(low_A)
        half_A = (high_A - low_A) / 2 if scaled else np.ones_like(low_A)

        def to_environment(actions: NDArray[Any]) -> NDArray[Any]:
            chunks = actions.shape[:2]
            within_NCA = np.clip(centre_A + half_A * actions.reshape(*chunks, -1), low_A, high_A)
            return np.asarray(within_NCA.reshape(*chunks, *space.shape), dtype=space.dtype)

        self.to_environment = to_environment
