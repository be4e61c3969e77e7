"""Messages between two processes of one machine: pickles with raw buffers, large ones in shared memory.

A message is a fixed header and a body: a table of part sizes, the pickle stream, and the buffers
that it refers to. A body over 64 KB lies in an anonymous shared-memory segment whose descriptor goes
with the header; the receiver maps it without a copy. Segments have no name, so none can be left over.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_core.comm.tensors import dispatch_table

SHARED_FROM = 64 * 1024  # bytes of a body
_ALIGN = 64
_IOV_MAX = 512
_HEADER = struct.Struct("<BBxxIQQ")  # kind, in shared memory?, number of parts, call id, body bytes
_SIZE = struct.Struct("<Q")
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_PADDING = bytes(_ALIGN)


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
        view = memoryview(self.body)
        sizes = [_SIZE.unpack_from(view, i * _SIZE.size)[0] for i in range(self.parts)]
        at = _aligned(self.parts * _SIZE.size)
        cut = []
        for size in sizes:
            cut.append(view[at : at + size])
            at += _aligned(size)
        return pickle.loads(cut[0], buffers=cut[1:])


@dataclass(frozen=True)
class Packed:
    """Content ready to be sent, any number of times."""

    pieces: Sequence[Any]  # Any: bytes-like
    parts: int
    size: int


def pack(content: Any) -> Packed:
    """Pickle the content with its arrays and tensors left out of the stream, uncopied."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = dispatch_table()
    pickler.dump(content)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
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
        if packed.size <= SHARED_FROM:
            header = _HEADER.pack(kind, 0, packed.parts, call, packed.size)
            with self._sending:
                self.socket.sendall(b"".join([header, *packed.pieces]))
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
            try:
                return Message(kind, call, parts, mmap.mmap(descriptors[0], size))
            finally:
                os.close(descriptors[0])
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


def _write_segment(packed: Packed) -> int:
    """A descriptor of a new anonymous segment that holds the body."""
    segment = _new_segment()
    try:
        pieces = [memoryview(piece).cast("B") for piece in packed.pieces if len(piece)]
        while pieces:
            written = os.writev(segment, pieces[:_IOV_MAX])
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if written:
                pieces[0] = pieces[0][written:]
    except BaseException:
        os.close(segment)
        raise
    return segment


def _new_segment() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlinf-message", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # systems without memfd: a file that has lost its name
        return os.dup(file.fileno())
