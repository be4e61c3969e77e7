"""A channel's connection to its hub: a socket, or where the hub is in the same process none."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rlinf_core.comm.frames import Frame, FrameReader, Say, head
from rlinf_core.comm.network import dial, stay_alert
from rlinf_core.comm.wire import write_all

_RELEASED_AT_ONCE = 4
_SILENCE_S = 5.0  # of the hub's machine, after which it counts as gone


class Port(ABC):
    """Sends frames and receives them. Any thread may send; one at a time receives."""

    shares = True  # memory, with the hub and with others there

    def __init__(self) -> None:
        self._released: deque[int] = deque()

    @abstractmethod
    def send(
        self, say: Say, fields: tuple[Any, ...], body: Sequence[Any] = (), descriptors: Sequence[int] = ()
    ) -> None:
        """Raises `OSError` when the hub is gone."""

    @abstractmethod
    def receive(self, timeout_s: float | None) -> list[Frame] | None:
        """What has come, or comes within that time; None when the hub is gone."""

    @abstractmethod
    def close(self) -> None:
        """Hang up."""

    def release(self, number: int) -> None:
        """Say that nobody here looks at a message in this segment any more. Never blocks.

        Finalizers call it, in any thread and at any time, perhaps while that thread sends. A few wait for
        whoever sends next to take them along.
        """
        self._released.append(number)
        if len(self._released) >= _RELEASED_AT_ONCE:
            with contextlib.suppress(OSError):  # the hub is gone, and nobody needs to know
                self._send_released()

    @abstractmethod
    def _send_released(self) -> None:
        """Send what was released, unless somebody is sending."""

    def _take_released(self) -> list[int]:
        numbers = []
        while self._released:
            numbers.append(self._released.popleft())
        return numbers


class SocketPort(Port):
    """The hub is in another process."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock
        self.shares = sock.family == socket.AF_UNIX
        self._reader = FrameReader(sock)
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(
        self, say: Say, fields: tuple[Any, ...], body: Sequence[Any] = (), descriptors: Sequence[int] = ()
    ) -> None:
        """Raises `OSError` when the hub is gone."""
        size = sum(memoryview(piece).nbytes for piece in body)
        first = head(say, fields, size, len(descriptors))
        with self._sending:
            numbers = self._take_released()
            if numbers:
                first = head(Say.RELEASE, (numbers,)) + first
            if descriptors:
                sent = socket.send_fds(self._socket, [first], list(descriptors))
                first = first[sent:]
            write_all([first, *body], self._socket.sendmsg)

    def receive(self, timeout_s: float | None) -> list[Frame] | None:
        """What has come, or comes within that time; None when the hub is gone."""
        if not self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            return []
        return self._reader.read()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()  # once nobody looks at anything that came through it

    def _send_released(self) -> None:
        while self._released and self._sending.acquire(blocking=False):
            try:
                numbers = self._take_released()
                if numbers:
                    self._socket.sendall(head(Say.RELEASE, (numbers,)))
            finally:
                self._sending.release()


class DirectHub(Protocol):
    """What a direct port needs of a hub."""

    lock: threading.Lock

    def turn(self) -> AbstractContextManager[None]:
        """Hold the lock, and send afterwards what is to be sent."""

    def hear(self, port: DirectPort, frame: Frame) -> None:
        """Take in a frame; the lock is held."""

    def lost(self, port: DirectPort) -> None:
        """The port is closed; the lock is held."""


class DirectPort(Port):
    """The hub is in this process: its work is done by whoever calls."""

    def __init__(self, hub: DirectHub) -> None:
        super().__init__()
        self._hub = hub
        self._frames: deque[Frame] = deque()
        self._over = False
        self._arrived = threading.Condition()

    def send(
        self, say: Say, fields: tuple[Any, ...], body: Sequence[Any] = (), descriptors: Sequence[int] = ()
    ) -> None:
        """Raises `OSError` when the hub is closed."""
        if self._over:
            raise ConnectionError("the hub is closed")
        frame = Frame(say, fields, bytearray().join(body), [os.dup(each) for each in descriptors])
        with self._hub.turn():
            self._hub.hear(self, frame)
            numbers = self._take_released()
            if numbers:
                self._hub.hear(self, Frame(Say.RELEASE, (numbers,)))

    def post(
        self, say: Say, fields: tuple[Any, ...], body: Sequence[Any], descriptors: Sequence[int]
    ) -> None:
        """The hub says something; its lock is held."""
        frame = Frame(say, fields, bytearray().join(body), [os.dup(each) for each in descriptors])
        with self._arrived:
            self._frames.append(frame)
            self._arrived.notify_all()

    def hang_up(self) -> None:
        """The hub is closed."""
        with self._arrived:
            self._over = True
            self._arrived.notify_all()

    def receive(self, timeout_s: float | None) -> list[Frame] | None:
        """What has come, or comes within that time; None when the hub is closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrived:
            while not self._frames and not self._over:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._arrived.wait(left)
            frames = list(self._frames)
            self._frames.clear()
            return frames if frames or not self._over else None

    def close(self) -> None:
        """Hang up."""
        if not self._over:
            with self._hub.turn():
                self._hub.lost(self)
            self.hang_up()

    def _send_released(self) -> None:
        while self._released and self._hub.lock.acquire(blocking=False):
            try:
                self._hub.hear(self, Frame(Say.RELEASE, (self._take_released(),)))
            finally:
                self._hub.lock.release()


class HubHere(DirectHub, Protocol):
    """A hub of this process."""

    pid: int

    def attach(self, channel: str, worker: str) -> DirectPort:
        """A direct connection."""


HUBS_HERE: weakref.WeakValueDictionary[str, HubHere] = weakref.WeakValueDictionary()


def open_port(address: str, token: str, channel: str, worker: str, elsewhere: str = "") -> Port:
    """Connect a worker to a channel of the hub at this address. Raises `OSError`."""
    hub = HUBS_HERE.get(address)
    if hub is not None and hub.pid == os.getpid():
        return hub.attach(channel, worker)
    return open_socket(address, token, channel, worker, elsewhere)


def open_socket(address: str, token: str, channel: str, worker: str, elsewhere: str = "") -> SocketPort:
    """Connect as from another process, and where none answers at the address as from another machine.

    Raises `OSError`."""
    sock = dial(address, elsewhere, token)
    try:
        stay_alert(sock, _SILENCE_S)
        port = SocketPort(sock)
        port.send(Say.HELLO, (channel, worker))
    except BaseException:
        sock.close()
        raise
    return port
