"""Weights in memory that the processes of a machine share: their sender writes a version once, in place.

A version lies in a *slot*: an anonymous file with a region for every bucket. Slots are used again for later
versions, so that their pages are there already, and no slot is written to while a version in it may still be
read. Receivers open the file by the sender's process id, map each region once, and read it as views: whoever
is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.segments import new_descriptor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNED = 64  # bytes, of tensors
_PAGE = mmap.ALLOCATIONGRANULARITY
_EXTENT = 2**34  # bytes; every one costs a descriptor
_POPULATE_WRITE = 23  # of madvise, from Linux 5.14 on
_SAMPLED = 4096  # entries
_PLAIN_FROM = 64 * 1024  # bytes from which numpy's copy, which is the C library's, is the faster one


@dataclass(frozen=True)
class Place:
    """A tensor in a region."""

    name: str
    dtype: str  # such as "bfloat16"
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class Extent:
    """A part of a slot that is mapped as one, most of which holds nothing yet."""

    board: str  # different for every sender
    process: int
    descriptor: int  # there
    begin: int
    size: int


@dataclass(frozen=True)
class Region:
    """A part of an extent."""

    extent: Extent
    begin: int
    size: int


@dataclass(frozen=True)
class SharedBucket:
    """A bucket that lies in shared memory; a message of a few bytes."""

    version: int
    region: Region
    places: tuple[Place, ...]
    last: bool = False


@dataclass
class Changes:
    """What a version changed, as far as it was compared with the one before, and what was sent."""

    entries: int = 0
    changed: float = 0.0
    sent_bytes: int = 0

    @property
    def share(self) -> float | None:
        """Of the entries that are different; None where nothing was compared."""
        return self.changed / self.entries if self.entries else None


@dataclass(eq=False)
class _Slot:
    board: str
    descriptor: int
    version: int = -1
    places: dict[str, tuple[Region, Place]] = field(default_factory=dict)
    lasting: bool = False  # a part of what it holds will not be sent again
    regions: list[Region] = field(default_factory=list)
    used: int = 0  # regions of this version
    memory_bytes: int = 0
    _extents: list[tuple[Extent, mmap.mmap]] = field(default_factory=list)
    _left: int = 0  # bytes of the last extent

    def region(self, size: int) -> Region:
        """The next one, as large at least; made where there is none."""
        number, self.used = self.used, self.used + 1
        if number < len(self.regions) and self.regions[number].size >= size:
            return self.regions[number]
        made = self._make(max(_PAGE, -(-size // _PAGE) * _PAGE))
        self.regions[number : number + 1] = [made]
        return made

    def memory(self, region: Region) -> mmap.mmap:
        """Of which the region is a part."""
        return next(memory for extent, memory in self._extents if extent == region.extent)

    def _make(self, size: int) -> Region:
        if self._left < size:
            self._extend(max(size, _EXTENT))
        extent, memory = self._extents[-1]
        region = Region(extent, extent.size - self._left, size)
        os.posix_fallocate(self.descriptor, extent.begin + region.begin, size)  # or an error, not a signal
        touch(memory, region)
        self._left -= size
        self.memory_bytes += size
        return region

    def _extend(self, size: int) -> None:
        begin = sum(extent.size for extent, _ in self._extents)
        os.ftruncate(self.descriptor, begin + size)  # of which nothing is there
        extent = Extent(self.board, os.getpid(), self.descriptor, begin, size)
        self._extents.append((extent, map_extent(self.descriptor, extent)))
        self._left = size


class WeightBoard:
    """The sender's side: one version after the other, while receivers may still read earlier ones."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._slots: list[_Slot] = []
        self._slot: _Slot | None = None
        self._before: _Slot | None = None  # where the version before lies
        self.changes = Changes()
        weakref.finalize(self, _close_all, self._slots).atexit = False

    def begin(self, version: int, in_use: Collection[int], *, whole: bool) -> None:
        """Start on a version; those `in_use` stay as they are. `whole`: it brings all weights, and later
        ones perhaps only a part of them."""
        free = (slot for slot in self._slots if slot.version not in in_use and not slot.lasting)
        slot = next(free, None)
        if slot is None:
            slot = _Slot(self._name, new_descriptor())
            self._slots.append(slot)
        slot.version, slot.lasting, slot.used = version, whole, 0
        slot.places.clear()
        self._before = None if slot is self._slot else self._slot
        self._slot = slot
        self.changes = Changes()

    def write(self, bucket: WeightBucket, dtype: str = "") -> SharedBucket:
        """Copy a bucket, floats as `dtype` ("" = as they are)."""
        slot = self._slot
        if slot is None:
            raise RuntimeError("write before begin")
        places, size = arranged(bucket.tensors, dtype)
        region = slot.region(size)
        memory = slot.memory(region)
        for place in places:
            target = view(memory, region, place)
            copy_into(target, bucket.tensors[place.name])
            slot.places[place.name] = (region, place)
            self._compare(target, place.name)
            self.changes.sent_bytes += target.nbytes
        return SharedBucket(bucket.version, region, tuple(places), bucket.last)

    def end(self) -> None:
        """The version is complete. Versions before it that hold nothing else may be overwritten once they
        are out of use."""
        done = self._slot
        for slot in self._slots:
            if done is not None and slot is not done and slot.places.keys() <= done.places.keys():
                slot.lasting = False

    def _compare(self, now: Tensor, name: str) -> None:
        """Look at a part of a tensor as it was in the version before."""
        found = None if self._before is None else self._before.places.get(name)
        if self._before is None or found is None:
            return
        before = view(self._before.memory(found[0]), *found)
        if (before.shape, before.dtype) == (now.shape, now.dtype) and now.numel():
            self.changes.entries += now.numel()
            self.changes.changed += now.numel() * sampled_share(before, now)

    def close(self) -> None:
        """What others have mapped stays theirs."""
        _close_all(self._slots)
        self._slot = self._before = None

    def memory_bytes(self) -> int:
        """Of all slots."""
        return sum(slot.memory_bytes for slot in self._slots)


class WeightReader:
    """The receiver's side, of one sender at a time."""

    def __init__(self) -> None:
        self._board = ""
        self._mapped: dict[Extent, mmap.mmap] = {}
        self._touched: set[Region] = set()

    def open(self, shared: SharedBucket) -> WeightBucket:
        """The bucket, its tensors views that stay as they are until a later version is installed: parameters,
        whose data a receiver may take for its own. Raises `OSError` where the sender is gone."""
        import torch

        memory = self._memory(shared.region)
        tensors: dict[str, Tensor] = {
            place.name: torch.nn.Parameter(view(memory, shared.region, place), requires_grad=False)
            for place in shared.places
        }
        return WeightBucket(shared.version, tensors, shared.last)

    def _memory(self, region: Region) -> mmap.mmap:
        extent = region.extent
        if extent.board != self._board:
            self._board = extent.board
            self._mapped.clear()
            self._touched.clear()
        if extent not in self._mapped:
            descriptor = os.open(f"/proc/{extent.process}/fd/{extent.descriptor}", os.O_RDWR)
            try:
                self._mapped[extent] = map_extent(descriptor, extent)
            finally:
                os.close(descriptor)
        if region not in self._touched:
            self._touched.add(region)
            touch(self._mapped[extent], region)
        return self._mapped[extent]


def map_extent(descriptor: int, extent: Extent) -> mmap.mmap:
    """Its memory, which costs nothing before it is touched."""
    return mmap.mmap(descriptor, extent.size, flags=mmap.MAP_SHARED, offset=extent.begin)


def touch(memory: mmap.mmap, region: Region) -> None:
    """Have the system map a region at once, where it can, and not page by page as it is used."""
    with contextlib.suppress(OSError):
        memory.madvise(_POPULATE_WRITE, region.begin, region.size)


def sampled_share(before: Tensor, now: Tensor) -> float:
    """Of the entries whose bits differ, by one block of 4096 in 32."""
    kind = f"u{now.element_size()}"
    old, new = octets(before).view(kind), octets(now).view(kind)
    looked, found = 0, 0
    for begin in range(0, len(new), 32 * _SAMPLED):
        differs = old[begin : begin + _SAMPLED] != new[begin : begin + _SAMPLED]
        looked += len(differs)
        found += int(differs.sum())
    return found / looked


def _close_all(slots: list[_Slot]) -> None:
    """Not by a method: it runs when the board is gone."""
    for slot in slots:
        os.close(slot.descriptor)
    slots.clear()


def arranged(tensors: Mapping[str, Tensor], dtype: str = "") -> tuple[list[Place], int]:
    """Places for these tensors one behind the other, floats in `dtype`, and how much they take."""
    import torch

    places, begin = [], 0
    for name, tensor in tensors.items():
        kind: torch.dtype = tensor.dtype
        if dtype and tensor.is_floating_point():
            kind = getattr(torch, dtype)
        places.append(Place(name, str(kind).removeprefix("torch."), tuple(tensor.shape), begin))
        begin = -(-(begin + kind.itemsize * tensor.numel()) // _ALIGNED) * _ALIGNED
    return places, begin


def cast_bucket(bucket: WeightBucket, dtype: str) -> WeightBucket:
    """The bucket, floats as `dtype` ("" = as they are)."""
    import torch

    if not dtype:
        return bucket
    kind: torch.dtype = getattr(torch, dtype)
    tensors = {
        name: tensor.detach().to(kind) if tensor.is_floating_point() and tensor.dtype != kind else tensor
        for name, tensor in bucket.tensors.items()
    }
    return WeightBucket(bucket.version, tensors, bucket.last)


def common_dtype(tensors: Iterable[Tensor]) -> str:
    """The dtype of all floats; "" where there is more than one."""
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return str(kinds.pop()).removeprefix("torch.") if len(kinds) == 1 else ""


def view(memory: mmap.mmap, region: Region, place: Place) -> Tensor:
    """The tensor at a place of a region."""
    import torch

    kind: torch.dtype = getattr(torch, place.dtype)
    count = prod(place.shape)
    if not count:
        return torch.empty(place.shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=region.begin + place.begin).reshape(
        place.shape
    )


def copy_into(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)`, at the speed of memory where nothing else is to be done."""
    import torch

    same = target.dtype == source.dtype and target.shape == source.shape
    on_host = target.device.type == source.device.type == "cpu"
    if same and on_host and target.nbytes >= _PLAIN_FROM and _plain(target) and _plain(source):
        octets(target)[:] = octets(source)
    else:
        with torch.no_grad():
            target.copy_(source)


def octets(tensor: Tensor) -> Any:  # Any: numpy's stubs
    """The bytes of a contiguous tensor in host memory as an array, uncopied."""
    import torch

    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def _plain(tensor: Tensor) -> bool:
    import torch

    kind = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return kind and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
