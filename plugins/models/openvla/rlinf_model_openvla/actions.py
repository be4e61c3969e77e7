"""Tokens to actions: bins on the tail of the vocabulary, and the scales of a data set.

Axes: K tokens of a decision, C actions of a chunk, A dimensions the model writes; leading axes are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from rlinf_core.api import Space
    from rlinf_model_openvla.config import OpenVLAConfig

SIMULATOR = "simulator"  # key of statistics that are a simulator's bounds


@dataclass(frozen=True)
class ActionTokens:
    """The last `bins` ids below `vocabulary`: id `vocabulary - d` is the d-th of as many edges, evenly
    from -1 to 1, that a value has reached (the first is 1)."""

    vocabulary: int
    bins: int

    @property
    def first(self) -> int:
        """The lowest id."""
        return self.vocabulary - self.bins

    def values(self, ids: Tensor) -> Tensor:
        """The middle between two edges, float64. There is one less of these than of ids: the lowest id, of
        values at the upper end, gives the last."""
        edges = torch.linspace(-1.0, 1.0, self.bins, dtype=torch.float64)
        centres = ((edges[:-1] + edges[1:]) / 2).to(ids.device)
        return centres[(self.vocabulary - ids - 1).clamp(0, self.bins - 2)]

    def ids(self, values: Tensor) -> Tensor:
        """Of values, clipped to -1..1."""
        edges = torch.linspace(-1.0, 1.0, self.bins, dtype=torch.float64, device=values.device)
        reached = torch.searchsorted(edges, values.double().clamp(-1.0, 1.0).contiguous(), right=True)
        return self.vocabulary - reached


@dataclass(frozen=True)
class Scales:
    """What -1 and 1 stand for in each dimension; dimensions off the mask are left as they are."""

    key: str
    low_A: tuple[float, ...]
    high_A: tuple[float, ...]
    mask_A: tuple[bool, ...]

    @classmethod
    def from_statistics(cls, statistics: Mapping[str, Any], key: str, where: str) -> Scales:
        """The 1 % and 99 % quantiles of data set `key` (JSON values); "" means the only one.

        Raises `ModelError` that lists what there is.
        """
        known = ", ".join(sorted(statistics)) or "none"
        if not key and len(statistics) == 1:
            key = next(iter(statistics))
        if not key:
            raise ModelError(
                f"model.unnorm_key (openvla): {where} has statistics of several data sets; name one: {known}"
            )
        if key not in statistics:
            raise ModelError(
                f"model.unnorm_key (openvla): no statistics of {key!r} in {where}; there are: {known}"
            )
        action = statistics[key].get("action", {})
        missing = [name for name in ("q01", "q99") if name not in action]
        if missing:
            raise ModelError(
                f"model.unnorm_key (openvla): the action statistics of {key!r} in {where} have no "
                f"{' and no '.join(missing)}"
            )
        low, high = (tuple(float(x) for x in action[name]) for name in ("q01", "q99"))
        mask = tuple(bool(x) for x in action.get("mask", [True] * len(low)))
        return cls(key, low, high, mask)

    @classmethod
    def of_space(cls, space: Space) -> Scales:
        """A simulator's own bounds."""
        if not np.isfinite([space.low, space.high]).all():
            raise ModelError(
                "model openvla: actions of this simulator have no bounds that -1 and 1 could stand for; use "
                "a checkpoint with statistics, by model.path"
            )
        size = int(np.prod(space.shape))
        return cls(SIMULATOR, (space.low,) * size, (space.high,) * size, (True,) * size)

    @property
    def size(self) -> int:
        """Dimensions of an action."""
        return len(self.low_A)

    def statistics(self) -> dict[str, Any]:
        """As they stand in a checkpoint. Any: JSON values."""
        action = {"q01": list(self.low_A), "q99": list(self.high_A), "mask": list(self.mask_A)}
        return {self.key: {"action": action}}

    def apply(self, values: Tensor) -> Tensor:
        """`(a + 1) / 2 * (q99 - q01) + q01` where the mask holds."""
        low_A, high_A = (values.new_tensor(bound) for bound in (self.low_A, self.high_A))
        mask_A = torch.tensor(self.mask_A, device=values.device)
        return torch.where(mask_A, (values + 1) / 2 * (high_A - low_A) + low_A, values)


def simulator_actions(ids_NK: Tensor, tokens: ActionTokens, scales: Scales, config: OpenVLAConfig) -> Tensor:
    """`[N, C, simulator's dimensions]` float32 for tokens `[N, C * A]`."""
    actions_NCA = scales.apply(tokens.values(ids_NK).unflatten(1, (-1, scales.size)))
    if config.gripper != "raw":
        sign = torch.sign(2 * actions_NCA[..., -1:] - 1)
        sign = -sign if config.gripper == "negative_sign" else sign
        actions_NCA = torch.cat([actions_NCA[..., :-1], sign], dim=-1)
    if config.action_dims:
        actions_NCA = actions_NCA[..., list(config.action_dims)]
    return actions_NCA.float()
