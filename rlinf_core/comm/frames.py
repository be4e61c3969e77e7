"""What channels say to their hub and the hub to them: frames on a stream socket."""

from __future__ import annotations

import pickle
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from rlinf_core.comm.network import GONE
from rlinf_core.errors import RlinfError

MOST_DESCRIPTORS = 64  # with one frame
_CHUNK = 64 * 1024
_HEADER = struct.Struct("<BxHIQ")  # what, number of descriptors, bytes of the fields, bytes of the body
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Say(IntEnum):
    """What a frame says; in brackets its fields."""

    HELLO = 1  # to the hub [channel, worker]
    PUT = 2  # to the hub [ticket, key, weight, order, promised, size, Content]
    ASK = 3  # to the hub: for an item [ticket, key, consumer, most, ids done with]
    WITHDRAW = 4  # to the hub: waits for no item any more [ticket]
    RECALL = 5  # to the hub: waits for no room any more [ticket]
    FINISH = 6  # to the hub: this producer has put its last item []
    CLOSE = 7  # to the hub [error or None]
    ABANDON = 8  # to the hub [error or None]
    BYE = 9  # to the hub [ids that were returned to somebody]
    RELEASE = 10  # both ways: nobody looks at these segments any more [numbers]
    FORGET = 11  # both ways: these segments will not be used again [numbers]
    WELCOME = 12  # to the channel [ChannelSettings]
    REFUSED = 13  # to the channel, instead [error]
    ITEM = 14  # to the channel [ticket, asked for?, id, (key, consumer), Content]
    NOTHING = 15  # to the channel: no item for a request [ticket, error]
    ANSWERS = 16  # to the channel: about its items [list of (ticket, taken in?, error)]
    OVER = 17  # to the channel: nothing is taken in any more [error that it failed with, or None]


# How an item lies in a frame: its parts, whether its body is the first of the references, the references
# to shared memory, and the numbers of those segments whose descriptors come along.
Content = tuple[int, bool, tuple[tuple[int, int, int, int, bool], ...], tuple[int, ...]]


@dataclass(slots=True)
class Frame:
    """One frame as received."""

    say: int
    fields: tuple[Any, ...]  # Any: by `say`
    body: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)


def head(say: int, fields: tuple[Any, ...], size: int = 0, descriptors: int = 0) -> bytes:
    """Everything of a frame but its body."""
    pickled = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(say, descriptors, len(pickled), size) + pickled


def sendable(error: BaseException | None) -> BaseException | None:
    """The error, or where it cannot travel another one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - from a process of this run, which has shown its token
    except Exception:  # whatever an exception's own pickling may raise
        return RlinfError(f"{type(error).__name__}: {error}")
    return error


class FrameReader:
    """Cuts the bytes of a socket into frames."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self) -> list[Frame] | None:
        """What one system call brings, waiting if the socket does; None at the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, MOST_DESCRIPTORS, _CLOEXEC)
        except BlockingIOError:
            return []
        except OSError as error:  # it went without reading what we sent, or its machine is gone
            if isinstance(error, ConnectionError) or error.errno in GONE:
                return None
            raise
        self._descriptors.extend(descriptors)
        if not data:
            return None
        self._buffer += data
        return self._cut()

    def _cut(self) -> list[Frame]:
        frames = []
        buffer, at = self._buffer, 0
        while len(buffer) - at >= _HEADER.size:
            say, descriptors, fields, body = _HEADER.unpack_from(buffer, at)
            begin = at + _HEADER.size
            end = begin + fields + body
            if end > len(buffer):
                break
            with memoryview(buffer) as view:
                content = pickle.loads(view[begin : begin + fields])  # noqa: S301 - from a process of this run, which has shown its token
            taken = [self._descriptors.popleft() for _ in range(descriptors)]
            frames.append(Frame(say, content, buffer[begin + fields : end], taken))
            at = end
        del buffer[:at]
        return frames
