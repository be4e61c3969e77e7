"""Parts of tensors that pass from process to process: shown or laid down by one, taken by others.

Who can read the giver's memory takes them from where they lie, in one copy. For others of its machine they
are laid down in an anonymous file of the giver, which takers open by its process id, as they do with weights.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.places import Extent, Region, copy_into, map_extent, octets, plain, touch
from rlinf_core.comm.reading import read_into
from rlinf_core.comm.segments import new_descriptor

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import Block, Held, Transfer

_PAGE = mmap.ALLOCATIONGRANULARITY
_ALONE_UNTIL = 16 * 2**20  # bytes
_THREADS = 2


@dataclass(frozen=True)
class Laid:
    """What a process gives: where it has laid it down, where it lies for those that read there, or itself
    for takers of other machines; in the order of what each takes."""

    extent: Extent | None
    far: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)  # taker -> bytes. Any: numpy arrays
    near: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # taker -> addresses
    process: int = 0  # that addresses are of

    def to(self, taker: int) -> Laid:
        """What one of the takers needs to know."""
        far = {taker: self.far[taker]} if taker in self.far else {}
        near = {taker: self.near[taker]} if taker in self.near else {}
        return Laid(self.extent, far, near, self.process)


class Outbox:
    """Memory for what one process gives to others, made and touched before it is needed. `readers` need
    none, but for parts whose entries do not lie one behind the other in host memory; `held` is where all
    parts lie, as far as is known."""

    def __init__(
        self, transfers: Iterable[Transfer], readers: Collection[int] = (), held: Held | None = None
    ) -> None:
        given = tuple(transfers)
        self.transfers = tuple(each for each in given if each.target not in readers)
        self._read = tuple(each for each in given if each.target in readers)
        self._gathered: dict[Transfer, Tensor] = {}
        parts = _Parts(held or {})
        for each in self._read if held is not None else ():
            part = parts.of(each)
            if not _readable(part):
                self._gathered[each] = _like(part).zero_()
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
        """Copy what is not read where it lies; takers in `far` cannot open the memory. What is read there
        is to stay as it is until everybody has taken it."""
        parts = _Parts(held)
        near: dict[int, list[int]] = {}
        for each in self._read:
            near.setdefault(each.target, []).append(self._shown(each, parts.of(each)))
        _at_once([_copying(_laid(self._memory, each), parts.of(each)) for each in self.transfers])
        sent = {
            taker: tuple(octets(_laid(self._memory, each)) for each in self.transfers if each.target == taker)
            for taker in far
        }
        return Laid(self._extent, sent, {taker: tuple(found) for taker, found in near.items()}, os.getpid())

    def close(self) -> None:
        """What takers have mapped stays theirs."""
        if self._extent is not None:
            os.close(self._extent.descriptor)
            self._extent = None
        self._gathered.clear()

    def _shown(self, transfer: Transfer, part: Tensor) -> int:
        """The address at which it is read."""
        if not _readable(part):
            gathered = self._gathered.setdefault(transfer, _like(part))
            part = gathered.copy_(part)
        return part.data_ptr()


def fill(held: Held, transfers: Iterable[Transfer], laid: Mapping[int, Laid], own: Held) -> None:
    """Copy everything that this process takes to where it is to lie: from what others have laid down, and
    from what it holds itself (`own`), where that lies elsewhere."""
    targets, mine = _Parts(held), _Parts(own)
    by_source: dict[int, list[Transfer]] = {}
    for each in transfers:
        by_source.setdefault(each.source, []).append(each)
    jobs = []
    for source, wanted in by_source.items():
        places = [targets.of(each) for each in wanted]
        if all(each.target == source for each in wanted):
            found = [mine.of(each) for each in wanted]
        elif wanted[0].target in laid[source].near:
            jobs += _readings(laid[source], wanted, places)
            continue
        else:
            found = _taken(laid[source], wanted)
        jobs += [_copying(a, b) for a, b in zip(places, found, strict=True) if a.data_ptr() != b.data_ptr()]
    _at_once(jobs)


@dataclass(frozen=True)
class _Job:
    """A copy to be made."""

    nbytes: int
    do: Callable[[], None]


def _copying(target: Tensor, source: Tensor) -> _Job:
    return _Job(source.nbytes, partial(copy_into, target, source))


def _readings(laid: Laid, wanted: Sequence[Transfer], places: Sequence[Tensor]) -> list[_Job]:
    addresses = laid.near[wanted[0].target]
    return [
        _Job(each.nbytes, partial(_read, place, laid.process, address))
        for each, place, address in zip(wanted, places, addresses, strict=True)
    ]


def _read(target: Tensor, process: int, address: int) -> None:
    found = target if _readable(target) else _like(target)
    read_into(found, process, address)
    if found is not target:
        copy_into(target, found)


def _readable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and plain(tensor)


def _like(tensor: Tensor) -> Tensor:
    """Host memory, its entries one behind the other."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _at_once(jobs: Sequence[_Job]) -> None:
    """Everybody waits for it, so that other cores may help."""
    if sum(job.nbytes for job in jobs) < _ALONE_UNTIL:
        for job in jobs:
            job.do()
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(job.do) for job in jobs]:
            done.result()


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
