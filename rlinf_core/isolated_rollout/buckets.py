"""Weights in a file that an engine's processes can open, and digests of them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.places import Place, view

if TYPE_CHECKING:
    from torch import Tensor

WRAP = 1 << 64  # digests are numbers below


@dataclass(frozen=True)
class Bucket:
    """Some weights in a file that any process of this machine can open while the engine's runs."""

    path: str
    size: int  # of the file
    places: tuple[Place, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Views, to be read only until `load` returns."""
        memory = _mapped(self.path, self.size)
        return {place.name: view(memory, place) for place in self.places}

    def to_plain(self) -> list[Any]:
        """As values that any message can carry, for an engine's own processes."""
        places = [[p.name, p.dtype, list(p.shape), p.begin] for p in self.places]
        return [self.path, self.size, places]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Bucket:  # Any: what `to_plain` gave
        """What `to_plain` was asked of."""
        path, size, places = plain
        return cls(path, size, tuple(Place(n, d, tuple(s), b) for n, d, s, b in places))


def digest(tensors: Iterable[Tensor]) -> int:
    """The sum of all elements' bits as numbers, below 2^64. It does not depend on how the elements are
    divided into tensors, and zeros, which padding consists of, add nothing."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = 0
    for tensor in tensors:
        if tensor.numel():
            bits = tensor.detach().contiguous().view(kinds[tensor.element_size()])
            total += int(bits.sum(dtype=torch.int64))
    return total % WRAP


@lru_cache(maxsize=2)
def _mapped(path: str, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
