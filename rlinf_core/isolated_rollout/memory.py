"""The proxy's side of the memory that weights travel in: of two halves, one is filled while one is read.

Nothing of it is left behind, whoever is killed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.places import arranged, copy_into, view
from rlinf_core.comm.segments import new_descriptor
from rlinf_core.isolated_rollout.buckets import digest

if TYPE_CHECKING:
    from torch import Tensor

_STEP = 1 << 20  # bytes that the memory grows by


class WeightMemory:
    """An anonymous file that the engine's process inherits, and that grows with the largest bucket."""

    def __init__(self) -> None:
        self.descriptor = new_descriptor()
        self.half = 0  # bytes of one

    def fits(self, tensors: Mapping[str, Tensor], dtype: str) -> bool:
        """Whether `write` need not grow, for which nothing may be read meanwhile."""
        return arranged(tensors, dtype)[1] <= self.half

    def write(
        self, tensors: Mapping[str, Tensor], dtype: str, half: int
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Copy them into a half, floats as `dtype`. Returns what to tell the process, and digests by name."""
        if not self.fits(tensors, dtype):
            self._grow(arranged(tensors, dtype)[1])
        places, _ = arranged(tensors, dtype, half * self.half)
        digests = {}
        for place in places:
            target = view(self._memory, place)
            copy_into(target, tensors[place.name])
            digests[place.name] = digest([target])
        told = [[place.name, place.dtype, list(place.shape), place.begin] for place in places]
        return {"size": 2 * self.half, "places": told}, digests

    def close(self) -> None:
        """What the process has mapped stays its own."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _grow(self, half: int) -> None:
        self.half = -(-half // _STEP) * _STEP
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.descriptor, 0, 2 * self.half)  # full memory is an error, not a signal
        else:
            os.ftruncate(self.descriptor, 2 * self.half)
        self._memory = mmap.mmap(self.descriptor, 2 * self.half)
