"""Parts of tensors that pass from process to process: laid down by one, taken by others of its machine.

The memory is an anonymous file of the giver; takers open it by its process id, as they do with weights.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.places import Extent, Region, copy_into, map_extent, octets, touch
from rlinf_core.comm.segments import new_descriptor

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import Block, Held, Transfer

_PAGE = mmap.ALLOCATIONGRANULARITY
_ALONE_UNTIL = 16 * 2**20  # bytes
_THREADS = 2


@dataclass(frozen=True)
class Laid:
    """What a process has laid down: where, or itself for takers of other machines, in order."""

    extent: Extent | None
    far: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)  # taker -> bytes. Any: numpy arrays


class Outbox:
    """Memory for what one process gives to others, made and touched before it is needed."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self.transfers = tuple(transfers)
        self._extent: Extent | None = None
        end = max((each.begin + each.nbytes for each in self.transfers), default=0)
        if end:
            size = -(-end // _PAGE) * _PAGE
            descriptor = new_descriptor()
            os.posix_fallocate(descriptor, 0, size)  # or an error, not a signal
            self._extent = Extent(secrets.token_hex(8), os.getpid(), descriptor, 0, size)
            self._memory = map_extent(descriptor, self._extent)
            touch(self._memory, Region(self._extent, 0, size))

    def lay(self, held: Held, far: Iterable[int] = ()) -> Laid:
        """Copy everything; takers in `far` cannot open the memory."""
        parts = _Parts(held)
        _copy([(_laid(self._memory, each), parts.of(each)) for each in self.transfers])
        sent = {
            taker: tuple(octets(_laid(self._memory, each)) for each in self.transfers if each.target == taker)
            for taker in far
        }
        return Laid(self._extent, sent)

    def close(self) -> None:
        """What takers have mapped stays theirs."""
        if self._extent is not None:
            os.close(self._extent.descriptor)
            self._extent = None


def fill(held: Held, transfers: Iterable[Transfer], laid: Mapping[int, Laid], own: Held) -> None:
    """Copy everything that this process takes to where it is to lie: from what others have laid down, and
    from what it holds itself (`own`), where that lies elsewhere."""
    targets, mine = _Parts(held), _Parts(own)
    by_source: dict[int, list[Transfer]] = {}
    for each in transfers:
        by_source.setdefault(each.source, []).append(each)
    pairs = []
    for source, wanted in by_source.items():
        kept = all(each.target == source for each in wanted)
        found = [mine.of(each) for each in wanted] if kept else _taken(laid[source], wanted)
        pairs += [(targets.of(each), part) for each, part in zip(wanted, found, strict=True)]
    _copy([(target, source) for target, source in pairs if target.data_ptr() != source.data_ptr()])


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Sources to targets; everybody waits for it, so that other cores may help."""
    if sum(source.nbytes for _, source in pairs) < _ALONE_UNTIL:
        for target, source in pairs:
            copy_into(target, source)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for copied in [pool.submit(copy_into, target, source) for target, source in pairs]:
            copied.result()


def _taken(laid: Laid, wanted: Sequence[Transfer]) -> list[Tensor]:
    """Views of what another process has laid down."""
    sent = laid.far.get(wanted[0].target)
    if sent is not None:
        return [_tensor(array, each, 0) for each, array in zip(wanted, sent, strict=True)]
    if laid.extent is None:
        raise RuntimeError(f"process {wanted[0].source} has laid down nothing")
    memory = _opened(laid.extent)
    return [_tensor(memory, each, each.begin) for each in wanted]


def _opened(extent: Extent) -> mmap.mmap:
    descriptor = os.open(f"/proc/{extent.process}/fd/{extent.descriptor}", os.O_RDWR)
    try:
        memory = map_extent(descriptor, extent)
    finally:
        os.close(descriptor)
    touch(memory, Region(extent, 0, extent.size))
    return memory


def _laid(memory: mmap.mmap, transfer: Transfer) -> Tensor:
    return _tensor(memory, transfer, transfer.begin)


def _tensor(memory: Any, transfer: Transfer, begin: int) -> Tensor:  # Any: a buffer
    import torch

    kind: torch.dtype = getattr(torch, transfer.dtype)
    found = torch.frombuffer(memory, dtype=kind, count=prod(transfer.sizes), offset=begin)
    return found.reshape(transfer.sizes)


class _Parts:
    """Where what a process holds lies; of a tensor it may hold several boxes."""

    def __init__(self, held: Held) -> None:
        self._blocks: dict[str, list[tuple[Block, Tensor]]] = {}
        for block, tensor in held.items():
            self._blocks.setdefault(block.name, []).append((block, tensor))

    def of(self, transfer: Transfer) -> Tensor:
        """The box of a transfer, which lies within one of them."""
        for block, tensor in self._blocks.get(transfer.name, ()):
            begins = [a - zero for a, zero in zip(transfer.offsets, block.offsets, strict=True)]
            ends = [begin + size for begin, size in zip(begins, transfer.sizes, strict=True)]
            if all(a >= 0 for a in begins) and all(a <= b for a, b in zip(ends, block.sizes, strict=True)):
                return tensor[tuple(map(slice, begins, ends))]
        raise RuntimeError(f"{transfer.name}: no block here has the entries from {transfer.offsets} on")
