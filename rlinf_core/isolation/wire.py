"""Framed messages between a process and one in another environment: a kind, MessagePack, and raw bytes.

Large arrays are not in them: they lie in shared memory. Both sides import this file, so it knows the standard
library and nothing else. What the kinds are, and the version of it all, belongs to the rooms that talk.
"""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

from rlinf_core.isolation.msgpack import pack, unpack

_HEADER = struct.Struct("<III")  # kind, bytes of MessagePack, bytes behind it
_AT_ONCE = 1 << 18  # bytes of one read


@dataclass(frozen=True)
class Message:
    """One message, whole. Any: values that MessagePack has."""

    kind: int
    said: Any = None
    raw: bytes = b""


class Wire:
    """One end of a socket pair. Several threads may send; one at a time may receive."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._read = bytearray()
        self._sending = threading.Lock()

    def send(self, kind: int, said: Any = None, raw: bytes = b"") -> None:  # Any: values that MessagePack has
        """Raises `OSError` if the other side is gone, or takes nothing for the socket's timeout."""
        told = b"" if said is None else pack(said)
        with self._sending:
            self.socket.sendall(_HEADER.pack(kind, len(told), len(raw)) + told + raw)

    def receive(self) -> Message:
        """Wait for the next message. Raises `EOFError` when the other side is gone."""
        while (message := self._whole()) is None:
            self._take(self.socket.recv(_AT_ONCE))
        return message

    def arrived(self) -> list[Message]:
        """The messages that are there. Raises `EOFError` when there is none and the other side is gone."""
        messages: list[Message] = []
        while True:
            while (message := self._whole()) is not None:
                messages.append(message)
            try:
                self._take(self.socket.recv(_AT_ONCE, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return messages
            except EOFError:
                if messages:  # what was said last counts; the end is told by the next call
                    return messages
                raise

    def _take(self, piece: bytes) -> None:
        if not piece:
            raise EOFError
        self._read += piece

    def _whole(self) -> Message | None:
        if len(self._read) < _HEADER.size:
            return None
        kind, told, raw = _HEADER.unpack_from(self._read)
        end = _HEADER.size + told + raw
        if len(self._read) < end:
            return None
        middle = _HEADER.size + told
        said = unpack(bytes(self._read[_HEADER.size : middle])) if told else None
        message = Message(kind, said, bytes(self._read[middle:end]))
        del self._read[:end]
        return message
