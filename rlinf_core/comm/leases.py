"""What a receiver has mapped of others' shared memory, and who here still looks at it."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

SHARED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
_MOST_MAPPED = 256  # segments that this process maps of others; beyond it messages are copied
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Ref(NamedTuple):
    """Where a piece of a message lies. `once`: the segment is not used again."""

    number: int
    capacity: int
    begin: int
    size: int
    once: bool


class SegmentReader:
    """The receiver's side: maps each segment once and tells when a message in it is no longer looked at."""

    def __init__(self, on_release: Callable[[int], None]) -> None:
        self._on_release = on_release  # called by finalizers, in any thread and at any time
        self._memory: dict[int, mmap.mmap] = {}
        self._copies: dict[int, memoryview] = {}

    def learn(self, ref: Ref, descriptor: int) -> None:
        """Take over the descriptor of a segment, which comes with its first message."""
        with open(descriptor, "r+b", buffering=0) as file:
            if ref.once and len(_mapped) >= _MOST_MAPPED:
                self._copies[ref.number] = _read(file.fileno(), ref)
                return
            memory = mmap.mmap(file.fileno(), ref.capacity, flags=SHARED)
        _mapped.add(memory)
        self._memory[ref.number] = memory

    def open(self, ref: Ref) -> memoryview:
        """The piece as a writable view. To be called once for every message."""
        copy = self._copies.pop(ref.number, None)
        if copy is not None:
            self._on_release(ref.number)
            return copy
        memory = self._memory.pop(ref.number) if ref.once else self._memory[ref.number]
        lease = lease_of(memory, ref.capacity)
        weakref.finalize(lease, self._on_release, ref.number).atexit = False
        return pickle.PickleBuffer(lease).raw()[ref.begin : ref.begin + ref.size]

    def close(self) -> None:
        """Unmap all, as soon as nobody looks at it."""
        self._memory.clear()

    def forget(self, numbers: Iterable[int]) -> None:
        """Unmap segments that will not be used again, as soon as nobody looks at them."""
        for number in numbers:
            self._memory.pop(number, None)


def lease_of(memory: mmap.mmap, capacity: int) -> Any:  # Any: a ctypes array
    """An object over mapped memory that lives as long as any view of it."""
    return _lease_type(capacity).from_buffer(memory)


@lru_cache(maxsize=256)
def _lease_type(capacity: int) -> Any:  # Any: a class made by ctypes
    return type("Lease", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": capacity})


def _read(descriptor: int, ref: Ref) -> memoryview:
    body = memoryview(bytearray(ref.size))
    done = 0
    while done < ref.size:
        done += os.preadv(descriptor, [body[done:]], ref.begin + done)
    return body
