"""Weights in memory that the processes of a machine share: their sender writes a version once, in place.

A version lies in a *slot*: an anonymous file with a region for every bucket. Slots are used again for later
versions, so that their pages are there already, and no slot is written to while a version in it may still be
read. Receivers open the file by the sender's process id, map each region once, and read it as views: whoever
is killed leaves nothing behind.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.live import LiveParameters
from rlinf_core.comm.places import (
    Extent,
    Place,
    Region,
    arranged,
    checksum,
    copy_into,
    map_extent,
    octets,
    touch,
    view,
)
from rlinf_core.comm.segments import new_descriptor
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.weight_part import WeightPart

_PAGE = mmap.ALLOCATIONGRANULARITY
_EXTENT = 2**34  # bytes; every one costs a descriptor
_SAMPLED = 4096  # entries


@dataclass(frozen=True)
class SharedBucket:
    """A bucket that lies in shared memory; a message of a few bytes."""

    version: int
    places: tuple[tuple[Region, Place], ...]
    last: bool = False
    sums: Mapping[str, int] | None = None  # of the tensors, where they are to be compared


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
    names: set[str] = field(default_factory=set)  # of the version, wherever they lie
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
        self._live = LiveParameters(self._name)
        self._shows = False
        weakref.finalize(self, _close_all, self._slots).atexit = False

    def begin(self, version: int, in_use: Collection[int], *, whole: bool, live: bool = False) -> None:
        """Start on a version; those `in_use` stay as they are. `whole`: it brings all weights, and later
        ones perhaps only a part of them. `live`: parameters may be shown where they are, for receivers that
        do nothing while they change."""
        free = (slot for slot in self._slots if slot.version not in in_use and not slot.lasting)
        slot = next(free, None)
        if slot is None:
            slot = _Slot(self._name, new_descriptor())
            self._slots.append(slot)
        slot.version, slot.lasting, slot.used = version, whole, 0
        slot.names.clear()
        slot.places.clear()
        self._shows = live
        self._before = None if slot is self._slot else self._slot
        self._slot = slot
        self.changes = Changes()

    def write(self, bucket: WeightBucket, dtype: str = "", *, checked: bool = False) -> SharedBucket:
        """Copy a bucket, floats as `dtype` ("" = as they are); `checked`: with checksums."""
        slot = self._slot
        if slot is None:
            raise RuntimeError("write before begin")
        shown = self._live.show(bucket.tensors) if self._shows else {}
        slot.names.update(bucket.tensors)
        rest = {name: tensor for name, tensor in bucket.tensors.items() if name not in shown}
        written = self._copy(slot, rest, dtype) if rest else {}
        sums = self._sums(slot, bucket.tensors, written) if checked else None
        return SharedBucket(bucket.version, (*shown.values(), *written.values()), bucket.last, sums)

    def _sums(
        self, slot: _Slot, tensors: Mapping[str, Tensor], written: Mapping[str, tuple[Region, Place]]
    ) -> dict[str, int]:
        """Of parameters that are shown, and of what was written."""
        copies = {
            name: view(slot.memory(region), place, region.begin) for name, (region, place) in written.items()
        }
        return {name: checksum(copies.get(name, tensor)) for name, tensor in tensors.items()}

    def _copy(
        self, slot: _Slot, tensors: Mapping[str, Tensor], dtype: str
    ) -> dict[str, tuple[Region, Place]]:
        places, size = arranged(tensors, dtype)
        region = slot.region(size)
        memory = slot.memory(region)
        written = {place.name: (region, place) for place in places}
        slot.places |= written
        for place in places:
            target = view(memory, place, region.begin)
            copy_into(target, tensors[place.name])
            self._compare(target, place.name)
            self.changes.sent_bytes += target.nbytes
        return written

    def reserve(self, bucket: WeightBucket, dtype: str = "") -> SharedBucket:
        """Room for a bucket, whose tensors may be without memory: others write into it."""
        slot = self._slot
        if slot is None:
            raise RuntimeError("reserve before begin")
        slot.names.update(bucket.tensors)
        places, size = arranged(bucket.tensors, dtype)
        region = slot.region(size)
        slot.places |= {place.name: (region, place) for place in places}
        return SharedBucket(bucket.version, tuple((region, place) for place in places), bucket.last)

    def look(self) -> None:
        """Compare what others have written with the version before."""
        slot = self._slot
        if slot is None:
            raise RuntimeError("look before begin")
        for name, (region, place) in slot.places.items():
            found = view(slot.memory(region), place, region.begin)
            self._compare(found, name)
            self.changes.sent_bytes += found.nbytes

    def end(self) -> None:
        """The version is complete. Versions before it that hold nothing else may be overwritten once they
        are out of use."""
        done = self._slot
        self._live.settle()
        for slot in self._slots:
            if done is not None and slot is not done and slot.names <= done.names:
                slot.lasting = False

    def _compare(self, now: Tensor, name: str) -> None:
        """Look at a part of a tensor as it was in the version before."""
        found = None if self._before is None else self._before.places.get(name)
        if self._before is None or found is None:
            return
        region, place = found
        before = view(self._before.memory(region), place, region.begin)
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
        """The bucket, its tensors views that stay as they are while this version is in use: parameters, whose
        data a receiver may take for its own. Raises `OSError` where the sender is gone, and `ModelError`
        where a checksum came along and is another one."""
        import torch

        tensors: dict[str, Tensor] = {
            place.name: torch.nn.Parameter(
                view(self._memory(region), place, region.begin), requires_grad=False
            )
            for region, place in shared.places
        }
        for name, wanted in (shared.sums or {}).items():
            if checksum(tensors[name]) != wanted:
                raise ModelError(
                    f"weight {name!r} of version {shared.version} is not what was written: its checksum "
                    "differs"
                )
        return WeightBucket(shared.version, tensors, shared.last)

    def fill(self, shared: SharedBucket, parts: Mapping[str, WeightPart]) -> None:
        """Write parts of its tensors where they are to lie."""
        for region, place in shared.places:
            part = parts[place.name]
            whole = view(self._memory(region), place, region.begin).reshape(-1)
            held = part.held.detach().reshape(-1)
            copy_into(whole[part.begin : part.begin + held.numel()], held)

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
