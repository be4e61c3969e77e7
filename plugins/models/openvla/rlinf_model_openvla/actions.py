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
    from rlinf_model_openvla.config import PrismaticConfig

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
    def from_statistics(
        cls, statistics: Mapping[str, Any], key: str, where: str, plugin: str, of: str = "action"
    ) -> Scales:
        """The 1 % and 99 % quantiles of data set `key` (JSON values); "" means the only one. Messages name
        the settings of `plugin`; `of` is what is scaled.

        Raises `ModelError` that lists what there is.
        """
        asked = f"model.unnorm_key ({plugin}):"
        known = ", ".join(sorted(statistics)) or "none"
        if not key and len(statistics) == 1:
            key = next(iter(statistics))
        if not key:
            raise ModelError(f"{asked} {where} has statistics of several data sets; name one: {known}")
        if key not in statistics:
            raise ModelError(f"{asked} no statistics of {key!r} in {where}; there are: {known}")
        found = statistics[key].get(of, {})
        missing = [name for name in ("q01", "q99") if name not in found]
        if missing:
            raise ModelError(
                f"{asked} the {of} statistics of {key!r} in {where} have no {' and no '.join(missing)}"
            )
        low, high = (tuple(float(x) for x in found[name]) for name in ("q01", "q99"))
        mask = tuple(bool(x) for x in found.get("mask", [True] * len(low)))
        return cls(key, low, high, mask)

    @classmethod
    def of_space(cls, space: Space, plugin: str) -> Scales:
        """A simulator's own bounds."""
        if not np.isfinite([space.low, space.high]).all():
            raise ModelError(
                f"model {plugin}: actions of this simulator have no bounds that -1 and 1 could stand for; "
                "use a checkpoint with statistics, by model.path"
            )
        size = int(np.prod(space.shape))
        return cls(SIMULATOR, (space.low,) * size, (space.high,) * size, (True,) * size)

    @property
    def size(self) -> int:
        """Dimensions of an action."""
        return len(self.low_A)

    def statistics(self) -> dict[str, Any]:
        """As they stand in a checkpoint. Any: JSON values."""
        return {"q01": list(self.low_A), "q99": list(self.high_A), "mask": list(self.mask_A)}

    def apply(self, values: Tensor) -> Tensor:
        """`(a + 1) / 2 * (q99 - q01) + q01` where the mask holds."""
        low_A, high_A = (values.new_tensor(bound) for bound in (self.low_A, self.high_A))
        mask_A = torch.tensor(self.mask_A, device=values.device)
        return torch.where(mask_A, (values + 1) / 2 * (high_A - low_A) + low_A, values)

    def invert(self, actions: Tensor) -> Tensor:
        """What `apply` makes these of; 0 in dimensions that never move."""
        low_A, high_A = (actions.new_tensor(bound) for bound in (self.low_A, self.high_A))
        mask_A = torch.tensor(self.mask_A, device=actions.device)
        width_A = high_A - low_A
        still_A = width_A == 0
        units = 2 * (actions - low_A) / torch.where(still_A, 1.0, width_A) - 1
        return torch.where(mask_A, torch.where(still_A, 0.0, units), actions)


def simulator_actions(values_NK: Tensor, scales: Scales, config: PrismaticConfig) -> Tensor:
    """`[N, C, simulator's dimensions]` float32 for what the model says, `[N, C * A]` from -1 to 1."""
    actions_NCA = scales.apply(values_NK.unflatten(1, (-1, scales.size)))
    if config.gripper != "raw":
        sign = torch.sign(2 * actions_NCA[..., -1:] - 1)
        sign = -sign if config.gripper == "negative_sign" else sign
        actions_NCA = torch.cat([actions_NCA[..., :-1], sign], dim=-1)
    if config.action_dims:
        actions_NCA = actions_NCA[..., list(config.action_dims)]
    return actions_NCA.float()


def model_values(actions: Tensor, scales: Scales, config: PrismaticConfig) -> Tensor:
    """What `simulator_actions` makes `[N, C, simulator's dimensions]` of, float64 `[N, C * A]`; dimensions
    that the simulator does not take are 0."""
    actions_NCA = actions.double()
    if config.action_dims:
        actions_NCA = actions_NCA.new_zeros(*actions.shape[:2], scales.size)
        actions_NCA[..., list(config.action_dims)] = actions.double()
    if config.gripper != "raw":
        sign = actions_NCA[..., -1:] if config.gripper == "sign" else -actions_NCA[..., -1:]
        actions_NCA = torch.cat([actions_NCA[..., :-1], (sign + 1) / 2], dim=-1)
    return scales.invert(actions_NCA).flatten(1)
