"""Weights from machine to machine: each passes on what comes, so that every link carries them once."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Generator, Iterator
from typing import Any

from rlinf_core.comm.network import TOKEN_BYTES, listen_at, new_token, place_of, same_token, stay_alert
from rlinf_core.comm.wire import Wire, pack
from rlinf_core.errors import ProducerDied

_BUCKET, _END, _FAILED = 1, 2, 3  # kinds of messages
_ANSWER_S = 30.0
_SILENCE_S = 30.0  # of the next machine, after which it counts as gone
_AHEAD = 2  # buckets that wait for the next machine


class Links:
    """One machine's place between the one before it and the one after it, as far as there are such."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._listener: socket.socket | None = None
        self._token = ""
        self._before: Wire | None = None
        self._after: _Sender | None = None

    def listen(self, reach: str) -> tuple[str, str]:
        """Wait at this address for the machine before; returns what `dial` needs there."""
        self.close()
        self._listener, self._token = listen_at(reach), new_token()
        return place_of(self._listener), self._token

    def dial(self, place: str, token: str) -> None:
        """Connect to the machine after."""
        host, _, port = place.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=_ANSWER_S)
        sock.settimeout(None)
        sock.sendall(token.encode())
        stay_alert(sock, _SILENCE_S)
        self._after = _Sender(Wire(sock))

    def passing(self, chunks: Iterator[list[Any]]) -> Generator[list[Any], None, None]:
        """What comes from the machine before, or, on the first one, `chunks`; it goes on while it is used
        here. Raises `ProducerDied` where the machine before, or the one after, has failed."""
        came = chunks if self._listener is None else self._coming()
        whole = False
        try:
            for chunk in came:
                for bucket in chunk:
                    if self._after is not None:
                        self._after.put(_BUCKET, bucket)
                yield chunk
            whole = True
        finally:
            if self._after is not None:
                self._after.put(_END if whole else _FAILED, None)
        if self._after is not None:
            self._after.settle()

    def close(self) -> None:
        """Hang up on both sides."""
        if self._after is not None:
            self._after.close()
        for thing in (self._before, self._listener):
            if thing is not None:
                thing.close()
        self._before = self._listener = self._after = None

    def _coming(self) -> Iterator[list[Any]]:
        wire = self._accepted()
        while True:
            message = wire.receive()
            if message is None or message.kind == _FAILED:
                raise ProducerDied(f"{self._name}: the machine before it has failed in passing on weights")
            if message.kind == _END:
                return
            if message.kind == _BUCKET:
                yield [message.load()]

    def _accepted(self) -> Wire:
        if self._before is None:
            listener = self._listener
            if listener is None:
                raise RuntimeError("accept before listen")
            listener.settimeout(_ANSWER_S)
            while self._before is None:
                sock, _ = listener.accept()
                sock.settimeout(_ANSWER_S)
                if same_token(_token_of(sock), self._token):
                    sock.settimeout(None)
                    stay_alert(sock, _SILENCE_S)
                    self._before = Wire(sock)
                else:
                    sock.close()
        return self._before


class _Sender:
    """Sends in a thread of its own, as the next machine takes it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: queue.Queue[tuple[int, Any] | None] = queue.Queue(_AHEAD)
        self._failed = False
        self._thread = threading.Thread(target=self._send, name="onward", daemon=True)
        self._thread.start()

    def put(self, kind: int, content: Any) -> None:  # Any: a bucket, or None
        """Send it soon."""
        self._waiting.put((kind, content))

    def settle(self) -> None:
        """Wait until all is sent. Raises `ProducerDied`, whoever it was that died."""
        self._waiting.join()
        if self._failed:
            raise ProducerDied("the next machine is gone: weights could not be passed on to it")

    def close(self) -> None:
        """Whatever the other end does."""
        with contextlib.suppress(OSError):  # it has hung up already
            self._wire.socket.shutdown(socket.SHUT_RDWR)
        self._waiting.put(None)
        self._thread.join(_ANSWER_S)
        self._wire.close()

    def _send(self) -> None:
        while (message := self._waiting.get()) is not None:
            kind, content = message
            try:
                if not self._failed:
                    self._wire.send(kind, 0, pack(content))
            except OSError:  # `settle` tells
                self._failed = True
            finally:
                self._waiting.task_done()


def _token_of(sock: socket.socket) -> bytes:
    said = b""
    while len(said) < TOKEN_BYTES:
        more = sock.recv(TOKEN_BYTES - len(said))
        if not more:
            break
        said += more
    return said
