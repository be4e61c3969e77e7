"""The decisions of rows, one after the other without padding, and their places in a padded batch.

Axes: B rows, D decisions of a row, M decisions of all rows, K positions of a decision, T = D * K positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf_core.types import Trajectory


def joined(arrays: Sequence[NDArray[Any]]) -> Tensor:
    """`[M, ...]` of the rows' `[D, ...]`."""
    return torch.from_numpy(np.concatenate(list(arrays)))


def executed(row: Trajectory) -> NDArray[np.bool_]:
    """`[D, C]`."""
    return np.ones(row.actions.shape[:2], dtype=bool) if row.executed is None else row.executed


def places(rows: Sequence[Trajectory], width: int | None, positions: int) -> dict[str, Tensor]:
    """`place` `[M]` of each decision among `B * D`, and `size`: B, D and the width in positions."""
    width = max(len(row.mask) for row in rows) if width is None else width
    decisions = -(-width // positions)
    place = [i * decisions + np.arange(len(row.actions)) for i, row in enumerate(rows)]
    return {"place": joined(place), "size": torch.tensor([len(rows), decisions, width])}


@dataclass(frozen=True)
class Grid:
    """Puts what was computed for decisions into `[B, T]`, zeros elsewhere."""

    place_M: Tensor
    rows: int
    decisions: int
    width: int

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor]) -> Grid:
        """Of what `places` gave."""
        return cls(inputs["place"], *inputs["size"].tolist())

    def spread(self, each_MK: Tensor) -> Tensor:
        """`[B, T]`, with gradient."""
        empty = each_MK.new_zeros(self.rows * self.decisions, each_MK.shape[1])
        return empty.index_copy(0, self.place_M, each_MK).view(self.rows, -1)[:, : self.width]
