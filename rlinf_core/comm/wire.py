"""Messages between two processes of one machine: pickles with raw buffers, large ones in shared memory.

A message is a fixed header and a body: a table of part sizes, the pickle stream, and the buffers
that it refers to. A large body lies in an anonymous shared-memory segment whose descriptor goes
with the header; the receiver maps it without a copy. Segments have no name, so none can be left over.
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
import pickle
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

from rlinf_core.comm.tensors import dispatch_table

SHARED_FROM = 4 * 2**20  # bytes of a body; below, new pages cost more than two copies through a socket
_MOST_MAPPED = 256  # live mappings, each of which holds a file descriptor; beyond it bodies are copied
_ALIGN = 64
_IOV_MAX = 512
_HEADER = struct.Struct("<BBxxIQQ")  # kind, in shared memory?, number of parts, call id, body bytes
_SIZE = struct.Struct("<Q")
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_PADDING = bytes(_ALIGN)
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
        cut = self._cut()
        return pickle.loads(cut[0], buffers=cut[1:])

    def note(self) -> bytes:
        """The note that `pack` was given."""
        return bytes(self._cut()[-1])

    def _cut(self) -> list[memoryview]:
        view = memoryview(self.body)
        sizes = [_SIZE.unpack_from(view, i * _SIZE.size)[0] for i in range(self.parts)]
        at = _aligned(self.parts * _SIZE.size)
        cut = []
        for size in sizes:
            cut.append(view[at : at + size])
            at += _aligned(size)
        return cut


@dataclass(frozen=True)
class Packed:
    """Content ready to be sent, any number of times."""

    pieces: Sequence[Any]  # Any: bytes-like
    parts: int
    size: int


def pack(content: Any, note: bytes | None = None) -> Packed:
    """Pickle the content with its arrays and tensors left out of the stream, uncopied. A note is some
    bytes that can be read without unpickling the content."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = dispatch_table()
    pickler.dump(content)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    if note is not None:
        parts.append(memoryview(note))
    table = b"".join(_SIZE.pack(part.nbytes) for part in parts)
    pieces: list[Any] = []
    size = 0
    for piece in (memoryview(table), *parts):
        gap = _aligned(piece.nbytes) - piece.nbytes
        pieces += [piece, _PADDING[:gap]] if gap else [piece]
        size += piece.nbytes + gap
    return Packed(pieces, len(parts), size)


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
                _write_all([header, *packed.pieces], self.socket.sendmsg)
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


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _write_all(pieces: Sequence[Any], write: Callable[[Sequence[Any]], int]) -> None:
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
        _write_all(packed.pieces, partial(os.writev, segment))
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
