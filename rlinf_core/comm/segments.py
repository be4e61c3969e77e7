"""Shared memory without names: a sender's pool of segments.

A segment is an anonymous file. Its sender maps it once and uses it again and again; a receiver gets the
descriptor with the first message in it, maps it once, and reads messages as views. When the last view of
a message is dropped, the receiver says so and the sender may write there again. A process that is killed
leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_core.comm.leases import SHARED, Ref, lease_of

_SMALLEST = 64 * 1024  # bytes of a segment
_ONCE_FROM = 8 * 2**20  # bytes that are worth a segment for one message
_MOST = 64  # segments of one pool, each of which holds descriptors at both ends
_COPY_WITH_NUMPY_FROM = 64 * 1024  # bytes from which it pays to let other threads run meanwhile


@dataclass(slots=True, eq=False)
class Segment:
    """One of a pool. `holders` counts who may still read it, here or elsewhere."""

    number: int
    capacity: int
    descriptor: int
    memory: mmap.mmap
    once: bool = False
    holders: int = 0
    known: bool = False  # the other end has its descriptor
    address: int = 0  # where it lies, once a part of it was lent

    def ref(self, begin: int, size: int) -> Ref:
        """For the receiver."""
        return Ref(self.number, self.capacity, begin, size, self.once)

    def write(self, pieces: Iterable[Any]) -> None:  # Any: bytes-like
        """Copy the pieces one behind the other; other threads run meanwhile where they are large."""
        numpy: Any = sys.modules.get("numpy")  # Any: a module; whoever sends arrays has loaded it
        at = 0
        with memoryview(self.memory) as target:
            for piece in pieces:
                size = memoryview(piece).nbytes
                part = target[at : at + size]
                if size >= _COPY_WITH_NUMPY_FROM and hasattr(numpy, "frombuffer"):
                    numpy.frombuffer(part, numpy.uint8)[:] = numpy.frombuffer(piece, numpy.uint8)
                elif size:
                    part[:] = memoryview(piece).cast("B")
                at += size


class SegmentPool:
    """The sender's side. Everything here is safe for threads."""

    def __init__(self, limit: int = 256 * 2**20) -> None:
        self.limit = limit
        self._all: dict[int, Segment] = {}
        self._free: list[Segment] = []  # the last is the one used last, and warm
        self._total = 0
        self._made = 0
        self._retired: list[int] = []
        self._dropped: deque[int] = deque()  # by finalizers, which may run anywhere
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._all).atexit = False

    def take(self, size: int) -> Segment | None:
        """A segment for this many bytes, with one holder; None where the limit is reached."""
        with self._lock:
            self._settle_dropped()
            segment = self._reuse(size)
            if segment is None:
                capacity = _rounded(size)
                if not self._make_room(capacity):
                    return None
                segment = self._make(capacity)
            segment.holders = 1
            return segment

    def place(self, size: int) -> Segment | None:
        """A segment for this many bytes; where the limit is reached only for many, one beyond it."""
        segment = self.take(size)
        return self.take_once(size) if segment is None and size >= _ONCE_FROM else segment

    def take_once(self, size: int) -> Segment:
        """A segment beyond the limit, which is gone when it was read."""
        with self._lock:
            segment = self._make(size)
            segment.once, segment.holders = True, 1
            return segment

    def lend(self, size: int) -> memoryview | None:
        """Memory to be filled here and sent without a copy; it counts as held while a view of it lives."""
        segment = self.take(size)
        if segment is None:
            return None
        lease = lease_of(segment.memory, segment.capacity)
        segment.address = ctypes.addressof(lease)
        weakref.finalize(lease, self._dropped.append, segment.number).atexit = False
        return pickle.PickleBuffer(lease).raw()[:size]

    def find(self, view: memoryview) -> tuple[Segment, int] | None:
        """The lent segment in which a buffer lies, held once more, and where in it."""
        address = _address(view)
        with self._lock:
            for segment in self._all.values():
                if segment.address and 0 <= address - segment.address < segment.capacity:
                    segment.holders += 1
                    return segment, address - segment.address
        return None

    def has_lent(self) -> bool:
        """Whether `find` may find anything."""
        return any(segment.address for segment in list(self._all.values()))

    def release(self, numbers: Sequence[int]) -> None:
        """Holders have let go of these segments."""
        with self._lock:
            self._settle_dropped()
            for number in numbers:
                self._let_go(number)

    def retired(self) -> list[int]:
        """Numbers of segments that receivers should forget; each is told once."""
        with self._lock:
            numbers, self._retired = self._retired, []
            return numbers

    def close(self) -> None:
        """Give up all segments; what others have mapped stays theirs."""
        with self._lock:
            _close_all(self._all)
            self._free.clear()

    def _settle_dropped(self) -> None:
        while self._dropped:
            self._let_go(self._dropped.popleft())

    def _let_go(self, number: int) -> None:
        segment = self._all.get(number)
        if segment is None:
            return
        segment.holders -= 1
        if segment.holders:
            return
        segment.address = 0
        if segment.once:
            self._destroy(segment)
        else:
            self._free.append(segment)

    def _reuse(self, size: int) -> Segment | None:
        for i in range(len(self._free) - 1, -1, -1):
            if size <= self._free[i].capacity <= max(4 * size, _SMALLEST):
                return self._free.pop(i)
        return None

    def _make_room(self, capacity: int) -> bool:
        while self._free and (self._total + capacity > self.limit or len(self._all) >= _MOST):
            self._destroy(self._free.pop(0))
        return self._total + capacity <= self.limit and len(self._all) < _MOST

    def _make(self, capacity: int) -> Segment:
        descriptor = new_descriptor()
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, capacity)  # full memory is an error here, not a signal
            else:
                os.ftruncate(descriptor, capacity)
            memory = mmap.mmap(descriptor, capacity, flags=SHARED)
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        segment = Segment(self._made, capacity, descriptor, memory)
        self._all[segment.number] = segment
        self._total += capacity
        return segment

    def _destroy(self, segment: Segment) -> None:
        del self._all[segment.number]
        self._total -= segment.capacity
        os.close(segment.descriptor)
        if segment.known and not segment.once:
            self._retired.append(segment.number)


def _close_all(segments: dict[int, Segment]) -> None:
    """Not by a method: it runs when the pool is gone."""
    for segment in segments.values():
        os.close(segment.descriptor)
    segments.clear()


def new_descriptor() -> int:
    """An anonymous file in memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlinf", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # systems without memfd: a file that has lost its name
        return os.dup(file.fileno())


def _rounded(size: int) -> int:
    """A little more, so that segments fit for messages of similar sizes."""
    step = max(_SMALLEST, 1 << max(0, size.bit_length() - 3))
    return (size + step - 1) // step * step


def _address(view: memoryview) -> int:
    import numpy

    return int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])
