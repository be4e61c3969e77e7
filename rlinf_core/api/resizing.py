"""A change of the number of ranks that train together: what each has, and what each will have."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.backend import Trainer

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """The part of a tensor that a rank holds: `sizes` entries from `offsets` on, of a whole of `shape`."""

    name: str
    dtype: str  # such as "bfloat16"
    itemsize: int  # bytes
    shape: Numbers
    offsets: Numbers
    sizes: Numbers

    @property
    def nbytes(self) -> int:
        """Of the part."""
        return math.prod(self.sizes) * self.itemsize


Held = Mapping[Block, "Tensor"]  # blocks, and where their entries are on this rank


@dataclass(frozen=True)
class Transfer:
    """A box of a tensor, entries from `offsets` on of the whole, that process `target` takes from process
    `source`, which may be itself. Processes have numbers that stay theirs, such as those of devices."""

    name: str
    dtype: str
    source: int
    target: int
    offsets: Numbers
    sizes: Numbers
    nbytes: int
    begin: int = 0  # where it lies in what the source gives to others


class Resize(ABC):
    """One rank's part in the change. Made while training goes on, in this order:

    `blocks` is known at once; `allocate` runs in a thread of its own; then, while nothing trains, every rank
    that will be there calls `enter` and has the tensors filled that it gives; `finish` makes the trainer.
    """

    blocks: tuple[Block, ...]  # that this rank will have

    @abstractmethod
    def allocate(self) -> None:
        """Make room, and whatever else takes time. No collectives, and nothing that training changes is
        touched."""

    @abstractmethod
    def enter(self) -> Held:
        """Leave the former ranks and meet the new ones; returns where `blocks` are to lie. Entries that stay
        where they are lie there already."""

    @abstractmethod
    def finish(self, facts: Mapping[str, Any]) -> Trainer:  # Any: what the backend's trainers tell
        """The trainer of this rank, its blocks filled; `facts` are those of a trainer of before."""
