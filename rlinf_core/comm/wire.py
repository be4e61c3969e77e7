"""Messages between two processes: pickles with raw buffers; on one machine large ones in shared memory.

A message is a fixed header and a body: a table of part sizes, the pickle stream, and the buffers
that it refers to. A large body lies in a segment of the sender's pool, which the receiver has mapped:
it is copied once, and used again when the receiver has dropped its last view. Between machines all bodies
go through the socket, large ones in pieces: a small message waits for one of them and not for all.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_core.comm.leases import Ref, SegmentReader
from rlinf_core.comm.network import GONE
from rlinf_core.comm.packing import Packed, cut, pack, unpack
from rlinf_core.comm.segments import Segment, SegmentPool

__all__ = ["SHARED_FROM", "Message", "Packed", "Wire", "pack", "write_all"]

SHARED_FROM = 128 * 1024  # bytes of a body; below, copies through the socket are cheaper
_RELEASED = 255  # the kind of messages that give segments back [numbers]
_FORGET = 254  # the kind of messages about segments that will not be used again [numbers]
_PIECE = 253  # the kind of messages that are a piece of a later one's body, whose size stands for the call
_PIECE_BYTES = 256 * 1024
_SHARED, _IN_PIECES = 1, 2  # where a body is that does not follow its header
_IOV_MAX = 512
_HEADER = struct.Struct("<HBBIQQ")  # mark, kind, where the body is, number of parts, call id, body bytes
_MARK = 0xA51C  # of every header; what has another one is no message
_NO_NEWS_S = 1  # within a message, after which `patience` is asked
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_REF = struct.Struct("<QQQQ?")  # the fields of `Ref`


@dataclass(frozen=True)
class Message:
    """One message as received. `load` gives its content; `size` is what it weighs in back-pressure."""

    kind: int
    call: int
    parts: int
    body: bytearray | memoryview

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

    def __init__(self, sock: socket.socket, patience: Callable[[], None] | None = None) -> None:
        """`patience` is asked every second while the rest of a message does not come; it may raise."""
        self.socket = sock
        self._patience = patience
        if patience is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _NO_NEWS_S, 0))
        self._shares = sock.family == socket.AF_UNIX
        self._sending = threading.Lock()
        self._one_large = threading.Lock()  # is sent in pieces at a time
        self._small = 0  # messages that wait for their turn
        self._counting = threading.Condition()
        self._gathered = memoryview(bytearray())  # of a body that comes in pieces
        self._missing = 0
        self._pool = SegmentPool()
        self._reader = SegmentReader(self._release)
        self._released: deque[int] = deque()

    def send(self, kind: int, call: int, packed: Packed) -> None:
        """Send one message. Raises `OSError` when the other end is gone."""
        shares = self._shares and packed.size >= SHARED_FROM
        segment = self._pool.place(packed.size) if shares else None
        if packed.size > _PIECE_BYTES and not self._shares:
            self._send_in_pieces(kind, call, packed)
        elif segment is None:
            header = _header(kind, 0, packed.parts, call, packed.size)
            with self._before_pieces():
                write_all([header, *packed.pieces], self.socket.sendmsg)
        else:
            segment.write(packed.pieces)
            header = _header(kind, _SHARED, packed.parts, call, packed.size)
            self._send_shared(segment, header + _REF.pack(*segment.ref(0, packed.size)))
        self._tell(_FORGET, self._pool.retired())
        self._tell_released()

    def nudge(self, kind: int) -> None:
        """Send a message without content, unless that means to wait. Raises `OSError` as `send` does."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            message = _header(kind, 0, 0, 0, 0)
            sent = self.socket.send(message, socket.MSG_DONTWAIT)
            self.socket.sendall(message[sent:])
        except BlockingIOError:  # what was sent before has not been read
            return
        finally:
            self._sending.release()

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone.

        Kinds of 253 and above are the wire's own: they are dealt with here and concern nobody else.
        """
        try:
            message = self._receive()
        except OSError as error:  # it went without reading what we sent, or its machine is gone
            if isinstance(error, ConnectionError) or error.errno in GONE:
                return None
            raise
        if message is not None and message.kind == _RELEASED:
            self._pool.release(_numbers(message.body))
        elif message is not None and message.kind == _FORGET:
            self._reader.forget(_numbers(message.body))
        return message

    def close(self) -> None:
        """Hang up; messages that were received stay readable."""
        self.socket.close()
        self._pool.close()
        self._reader.close()

    @contextlib.contextmanager
    def _before_pieces(self) -> Iterator[None]:
        """The next turn to send."""
        with self._counting:
            self._small += 1
        try:
            with self._sending:
                yield
        finally:
            with self._counting:
                self._small -= 1
                self._counting.notify_all()

    def _send_in_pieces(self, kind: int, call: int, packed: Packed) -> None:
        """And then the message without a body."""
        with self._one_large:
            for piece in packed.pieces:
                whole = memoryview(piece).cast("B")
                for begin in range(0, len(whole), _PIECE_BYTES):
                    part = whole[begin : begin + _PIECE_BYTES]
                    self._yield_to_small()
                    with self._sending:
                        header = _header(_PIECE, 0, 0, packed.size, len(part))
                        write_all([header, part], self.socket.sendmsg)
            with self._sending:
                self.socket.sendall(_header(kind, _IN_PIECES, packed.parts, call, packed.size))

    def _yield_to_small(self) -> None:
        """A lock does not see to it that those who wait come before who has just had it."""
        with self._counting:
            self._counting.wait_for(lambda: not self._small)

    def _send_shared(self, segment: Segment, header: bytes) -> None:
        with self._sending:
            sent = 0
            if not segment.known:
                sent = socket.send_fds(self.socket, [header], [segment.descriptor])
                segment.known = True
            self.socket.sendall(header[sent:])
        if segment.once:
            self._pool.release([segment.number])

    def _release(self, number: int) -> None:
        """Nobody here looks at a message in this segment any more. Never blocks; see `_tell_released`."""
        self._released.append(number)
        with contextlib.suppress(OSError):  # the other end is gone
            self._tell_released()

    def _tell_released(self) -> None:
        """Unless somebody is sending, who will then do so; finalizers come here at any time."""
        while self._released and self._sending.acquire(blocking=False):
            try:
                numbers = []
                while self._released:
                    numbers.append(self._released.popleft())
                body = array.array("Q", numbers).tobytes()
                message = _header(_RELEASED, 0, 0, 0, len(body)) + body
                sent = self.socket.send(message, socket.MSG_DONTWAIT)
                self.socket.sendall(message[sent:])
            except BlockingIOError:
                self._released.extend(numbers)
                return
            finally:
                self._sending.release()

    def _tell(self, kind: int, numbers: Sequence[int]) -> None:
        if numbers:
            body = array.array("Q", numbers).tobytes()
            with self._sending:
                self.socket.sendall(_header(kind, 0, 0, 0, len(body)) + body)

    def _receive(self) -> Message | None:
        header, descriptors, _, _ = socket.recv_fds(self.socket, _HEADER.size, 1, _CLOEXEC)
        if len(header) < _HEADER.size:
            rest = self._read(_HEADER.size - len(header)) if header else None
            if rest is None:
                return None
            header += bytes(rest)
        mark, kind, where, parts, call, size = _HEADER.unpack(header)
        if mark != _MARK:
            raise ValueError(f"what came is no message: it begins with {header[:8].hex(' ')}")
        if kind == _PIECE:
            return Message(kind, 0, 0, bytearray()) if self._gather(call, size) else None
        if where == _IN_PIECES:
            gathered, self._gathered = self._gathered, memoryview(bytearray())
            return Message(kind, call, parts, gathered)
        body = self._read(_REF.size if where == _SHARED else size)
        if body is None:
            return None
        if where != _SHARED:
            return Message(kind, call, parts, body)
        ref = Ref(*_REF.unpack(body))
        if descriptors:
            self._reader.learn(ref, descriptors[0])
        return Message(kind, call, parts, self._reader.open(ref))

    def _gather(self, whole: int, size: int) -> bool:
        """Take in a piece; False if the other end is gone."""
        if not self._missing:
            self._gathered, self._missing = memoryview(bytearray(whole)), whole
        begin = whole - self._missing
        self._missing -= size
        return self._read_into(self._gathered[begin : begin + size])

    def _read(self, size: int) -> bytearray | None:
        body = bytearray(size)
        return body if self._read_into(memoryview(body)) else None

    def _read_into(self, view: memoryview) -> bool:
        while len(view):
            try:
                count = self.socket.recv_into(view)
            except BlockingIOError:
                if self._patience is not None:
                    self._patience()
                continue
            if not count:
                return False
            view = view[count:]
        return True


def write_all(pieces: Sequence[Any], write: Callable[[Sequence[Any]], int]) -> None:
    """Hand all bytes of the pieces to a gathering `write`, which may take only some of them."""
    left = deque(memoryview(piece).cast("B") for piece in pieces if len(piece))
    while left:
        written = write(list(itertools.islice(left, _IOV_MAX)))
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]


def _header(kind: int, where: int, parts: int, call: int, size: int) -> bytes:
    return _HEADER.pack(_MARK, kind, where, parts, call, size)


def _numbers(body: bytearray | memoryview) -> list[int]:
    return memoryview(body).cast("Q").tolist()
