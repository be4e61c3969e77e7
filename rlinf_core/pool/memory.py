"""The shared memory of a pool: one array of all environments for everything that a step reads or writes.

Every process writes the rows of its own environments, so nothing has to be gathered. Both sides import
this file.

Axes: N environments, C actions of a chunk.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api.instructions import WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

SHOWN, FINAL = "shown/", "final/"  # what environments show now, and what ended episodes showed last
INSTRUCTION = "instruction"
OUTCOMES = ("rewards", "terminated", "truncated", "executed")  # [N, C]
_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class Layout:
    """What lies in the memory. `chunk` is the longest one that fits; what comes before actions does not move
    when it grows."""

    num_envs: int
    shown: Mapping[str, Sequence[int]]  # name -> shape of one environment's
    action: Sequence[int]  # shape of one
    action_type: str
    chunk: int

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """For the other side."""
        return asdict(self)

    @property
    def size(self) -> int:
        """In bytes."""
        return max(begin + kind.itemsize * prod(shape) for _, kind, shape, begin in self._places())

    def arrays(self, memory: mmap.mmap) -> Arrays:
        """Views by name; those of outcomes and actions have room for the longest chunk."""
        return {
            name: np.ndarray(shape, kind, memory, offset=begin) for name, kind, shape, begin in self._places()
        }

    def _places(self) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
        begin = 0
        for name, kind, shape in self._parts():
            yield name, np.dtype(kind), (self.num_envs, *shape), begin
            size = np.dtype(kind).itemsize * self.num_envs * prod(shape)
            begin = -(-(begin + size) // _ALIGNED) * _ALIGNED

    def _parts(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        for when in (SHOWN, FINAL):
            for name, shape in self.shown.items():
                yield when + name, np.uint8 if name.startswith("images/") else np.float32, tuple(shape)
            yield when + INSTRUCTION, np.uint8, (WIDTH,)
        yield "success", np.bool_, ()
        yield "actions", self.action_type, (self.chunk, *self.action)
        for name in OUTCOMES:
            yield name, np.float32 if name == "rewards" else np.bool_, (self.chunk,)
        yield "success_NC", np.bool_, (self.chunk,)
