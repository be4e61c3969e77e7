"""Messages between two processes of one machine: pickles with raw buffers, large ones in shared memory.

A message is a fixed header and a body: a table of part sizes, the pickle stream, and the buffers
that it refers to. A large body lies in an anonymous shared-memory segment whose descriptor goes
with the header; the receiver maps it without a copy. Segments have no name, so none can be left over.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_core.comm.packing import Packed, cut, pack, unpack

__all__ = ["SHARED_FROM", "Message", "Packed", "Wire", "pack", "write_all"]

SHARED_FROM = 4 * 2**20  # bytes of a body; below, new pages cost more than two copies through a socket
_MOST_MAPPED = 256  # live mappings, each of which holds a file descriptor; beyond it bodies are copied
_IOV_MAX = 512
_HEADER = struct.Struct("<BBxxIQQ")  # kind, in shared memory?, number of parts, call id, body bytes
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


@dataclass(frozen=True)
class Message:
    """One message as received. `load` gives its content; `size` is what it weighs in back-pressure."""

    kind: int
    call: int
    parts: int
    body: bytearray | mmap.mmap

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    def load(self) -> Any:
        """Unpickle; arrays and tensors are writable views of the body."""
        return unpack(memoryview(self.body), self.parts)

    def note(self) -> bytes:
        """The note that `pack` was given."""
        return bytes(cut(memoryview(self.body), self.parts)[-1])


class Wire:
    """One end of a connected stream socket. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._sending = threading.Lock()

    def send(self, kind: int, call: int, packed: Packed) -> None:
        """Send one message. Raises `OSError` when the other end is gone."""
        if packed.size < SHARED_FROM:
            header = _HEADER.pack(kind, 0, packed.parts, call, packed.size)
            with self._sending:
                write_all([header, *packed.pieces], self.socket.sendmsg)
            return
        segment = _write_segment(packed)
        try:
            header = _HEADER.pack(kind, 1, packed.parts, call, packed.size)
            with self._sending:
                sent = socket.send_fds(self.socket, [header], [segment])
                self.socket.sendall(header[sent:])
        finally:
            os.close(segment)

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        try:
            return self._receive()
        except ConnectionError:  # it went without reading what we sent
            return None

    def _receive(self) -> Message | None:
        header, descriptors, _, _ = socket.recv_fds(self.socket, _HEADER.size, 1, _CLOEXEC)
        if len(header) < _HEADER.size:
            rest = self._read(_HEADER.size - len(header)) if header else None
            if rest is None:
                return None
            header += bytes(rest)
        kind, shared, parts, call, size = _HEADER.unpack(header)
        if shared:
            return Message(kind, call, parts, _read_segment(descriptors[0], size))
        body = self._read(size)
        return None if body is None else Message(kind, call, parts, body)

    def _read(self, size: int) -> bytearray | None:
        body = bytearray(size)
        view = memoryview(body)
        while len(view):
            count = self.socket.recv_into(view)
            if not count:
                return None
            view = view[count:]
        return body


def write_all(pieces: Sequence[Any], write: Callable[[Sequence[Any]], int]) -> None:
    """Hand all bytes of the pieces to a gathering `write`, which may take only some of them."""
    left = deque(memoryview(piece).cast("B") for piece in pieces if len(piece))
    while left:
        written = write(list(itertools.islice(left, _IOV_MAX)))
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]


def _write_segment(packed: Packed) -> int:
    """A descriptor of a new anonymous segment that holds the body."""
    segment = _new_segment()
    try:
        write_all(packed.pieces, partial(os.writev, segment))
    except BaseException:
        os.close(segment)
        raise
    return segment


def _read_segment(segment: int, size: int) -> bytearray | mmap.mmap:
    """Map the segment, or copy it where many are mapped already; closes the descriptor."""
    with open(segment, "r+b", buffering=0) as file:
        if len(_mapped) < _MOST_MAPPED:
            mapped = mmap.mmap(file.fileno(), size)
            _mapped.add(mapped)
            return mapped
        body = bytearray(size)
        view = memoryview(body)
        file.seek(0)
        while len(view):
            view = view[file.readinto(view) :]
        return body


def _new_segment() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlinf-message", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # systems without memfd: a file that has lost its name
        return os.dup(file.fileno())
