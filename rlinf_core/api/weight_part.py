"""What a rank holds of a tensor that is divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WeightPart:
    """Entries from `begin` on, counted row by row, of a tensor of this `shape`."""

    shape: tuple[int, ...]
    begin: int
    held: Tensor  # perhaps none at all
