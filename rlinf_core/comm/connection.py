"""A worker's socket as the hub holds it: never blocks, keeps what the other end does not take yet."""

from __future__ import annotations

import array
import itertools
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from rlinf_core.comm.frames import MOST_DESCRIPTORS, FrameReader, Say, head
from rlinf_core.comm.network import TOKEN_BYTES, same_token

_IOV_MAX = 256


class Connection:
    """One end of a stream socket, whose other end still has to prove that it belongs here. `far`: it is on
    another machine."""

    def __init__(self, sock: socket.socket, pid: int, *, far: bool = False) -> None:
        sock.setblocking(False)
        self.far = far
        self._unproved = TOKEN_BYTES
        self._token = b""
        self.socket = sock
        self.pid = pid
        self.reader = FrameReader(sock)
        self.unsent: deque[tuple[memoryview, Sequence[int]]] = deque()  # pieces, descriptors of each
        self.watched = False  # for taking something again
        self._muted = False

    def proved(self, token: str) -> bool | None:
        """Read what proves that it belongs here, before anything else is read; None while it comes."""
        if self._unproved:
            try:
                data = self.socket.recv(self._unproved)
            except OSError:
                data = b""
            self._token += data
            self._unproved -= len(data)
            if self._unproved:
                return None if data else False
        return same_token(self._token, token)

    def post(
        self, say: Say, fields: tuple[Any, ...], body: Sequence[Any], descriptors: Sequence[int]
    ) -> None:
        """Queue a frame."""
        if self._muted:
            return
        pieces = [memoryview(piece) for piece in body]
        first = head(say, fields, sum(piece.nbytes for piece in pieces), len(descriptors))
        self.unsent.append((memoryview(first), descriptors))
        self.unsent.extend((piece, ()) for piece in pieces)

    def mute(self) -> None:
        """Nobody listens there any more."""
        self._muted = True
        self.unsent.clear()

    def flush(self) -> bool:
        """Send; False if something is left that the other end does not take yet."""
        while self.unsent:
            pieces, descriptors = self._gather()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            try:
                sent = self.socket.sendmsg(pieces, rights if descriptors else [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:  # it hung up; reading tells
                self.mute()
                return True
            self._forget_sent(sent, len(pieces))
        return True

    def close(self) -> None:
        """Hang up."""
        self.mute()
        self.socket.close()

    def _gather(self) -> tuple[list[memoryview], list[int]]:
        pieces: list[memoryview] = []
        descriptors: list[int] = []
        for piece, own in itertools.islice(self.unsent, _IOV_MAX):
            if len(descriptors) + len(own) > MOST_DESCRIPTORS:
                break
            pieces.append(piece)
            descriptors += own
        return pieces, descriptors

    def _forget_sent(self, sent: int, gathered: int) -> None:
        """Descriptors went with the first byte, also those of pieces that are still to be sent."""
        rest = []
        for _ in range(gathered):
            piece, _ = self.unsent.popleft()
            if sent < piece.nbytes:
                rest.append((piece[sent:], ()))
            sent = max(0, sent - piece.nbytes)
        self.unsent.extendleft(reversed(rest))
