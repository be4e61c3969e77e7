"""What the policy is told of the actions, and how its actions become the controllers'.

Axes: N environments, A action dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.api import Space
from rlinf_core.errors import ConfigError


class ActionLayout:
    """One box over the actions of all robots. Dimensions whose bounds differ are shown as -1..1 and scaled
    to their own, unless raw actions are asked for."""

    def __init__(self, space: Any, name: str, raw: bool) -> None:  # Any: a space of gymnasium
        boxes = dict(space.spaces) if hasattr(space, "spaces") else {"": space}
        for part in boxes.values():
            if getattr(part, "low", None) is None or len(part.shape) != 1:
                raise ConfigError(
                    f"simulator.id (maniskill): {name} takes {space}; actions are boxes of numbers"
                )
        self._sizes = {robot: part.shape[0] for robot, part in boxes.items()}
        low_A = np.concatenate([part.low for part in boxes.values()]).astype(np.float32)
        high_A = np.concatenate([part.high for part in boxes.values()]).astype(np.float32)
        equal = bool((low_A == low_A[0]).all() and (high_A == high_A[0]).all())
        self._scaled = not (equal or raw) and bool(np.isfinite([low_A, high_A]).all())
        self._low_A, self._high_A = low_A, high_A
        if self._scaled:
            self.space = Space(shape=low_A.shape)
        elif equal:
            self.space = Space(shape=low_A.shape, low=float(low_A[0]), high=float(high_A[0]))
        else:
            self.space = Space(shape=low_A.shape, low=-np.inf, high=np.inf)

    def to_environment(
        self, actions_NA: NDArray[Any]
    ) -> NDArray[np.float32] | dict[str, NDArray[np.float32]]:
        """Within the bounds; apart for each robot where there are several."""
        actions_NA = np.asarray(actions_NA, dtype=np.float32)
        if self._scaled:
            half_A = (self._high_A - self._low_A) / 2
            actions_NA = self._low_A + half_A * (actions_NA + 1)
        within_NA: NDArray[np.float32] = np.clip(actions_NA, self._low_A, self._high_A)
        if "" in self._sizes:
            return within_NA
        ends = np.cumsum([*self._sizes.values()])
        return dict(zip(self._sizes, np.split(within_NA, ends[:-1], axis=1), strict=True))
