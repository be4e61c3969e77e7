"""What one block is given, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlinf_core.schedule import algebra


@dataclass(frozen=True)
class Seat:
    """Devices of one member of a block."""

    device_type: str
    devices: int
    model_parallel: int = 1

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return self.devices // self.model_parallel


@dataclass(frozen=True)
class Option:
    """A block's part of a plan: one seat that all members share, or one each."""

    block: int
    seats: tuple[Seat, ...]
    chunk: int  # samples that travel at once, over all ranks; 0 = all
    resident: tuple[bool, ...]  # by member
    stages: int = 1


@dataclass(frozen=True)
class Priced:
    """An option with what the search compares."""

    option: Option
    early: float
    late: float
    switch: float
    kept: int  # memory that it always holds, in parts of a device
    loaded: int  # and more while it works

    def times(self, waits: bool, share: float) -> algebra.Times:
        """Its four numbers."""
        early, late, switch = (np.asarray(one) for one in (self.early, self.late, self.switch))
        return algebra.leaf(early, late, waits, share if self.option.chunk else 1.0, switch)


class Held(NamedTuple):
    """Seconds to leave the devices and come back, memory kept always, and memory more while at work."""

    switch: float
    kept: int
    loaded: int
