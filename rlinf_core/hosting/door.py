"""Where host processes that others start report to the driver: at a local socket, or from other machines."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import dataclass

from rlinf_core.comm.network import (
    TOKEN_BYTES,
    LocalListener,
    dial,
    listen_at,
    new_token,
    peer,
    place_of,
    same_token,
    stay_alert,
)
from rlinf_core.errors import WorkerError

_NAME_S = 10.0  # that whoever comes in has to say its name in
_SIZE = struct.Struct("<H")


@dataclass(frozen=True)
class Ticket:
    """What a host process needs to come in; small, and may travel to any machine."""

    local: str
    elsewhere: str
    token: str

    def enter(self, name: str, silence_s: float) -> socket.socket:
        """A socket to the driver, which knows it as `name`. Raises `OSError`."""
        sock = dial(self.local, self.elsewhere, self.token)
        stay_alert(sock, silence_s)
        said = name.encode()
        sock.sendall(_SIZE.pack(len(said)) + said)
        return sock


class Door:
    """Listens, and hands over who came in by name.

    `reach` is an address of this machine that other machines know; "" = only this machine comes in.
    """

    def __init__(self, reach: str, silence_s: float) -> None:
        self._silence_s = silence_s
        self._token = new_token()
        self._local = LocalListener()
        self._outside = listen_at(reach) if reach else None
        elsewhere = place_of(self._outside) if self._outside is not None else ""
        self.ticket = Ticket(self._local.address, elsewhere, self._token)
        self._inside: dict[str, socket.socket] = {}
        self._changed = threading.Condition()
        for listener in (self._local.socket, self._outside):
            if listener is not None:
                threading.Thread(target=self._listen, args=(listener,), name="door", daemon=True).start()

    def wait_for(self, name: str, timeout_s: float) -> socket.socket:
        """The socket of the one with this name. Raises `WorkerError` when it has not come in that time."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while name not in self._inside:
                left = end - time.monotonic()
                if left <= 0:
                    raise WorkerError(
                        f"process {name} has not reported to the driver within {timeout_s:g} s: can its "
                        f"machine reach {self.ticket.elsewhere or 'this one'}?",
                        worker=name,
                    )
                self._changed.wait(left)
            return self._inside.pop(name)

    def close(self) -> None:
        """Nobody comes in any more; those who are in stay."""
        for listener in (self._local.socket, self._outside):
            if listener is not None:
                _wake(listener)
        self._local.close()
        if self._outside is not None:
            self._outside.close()
        with self._changed:
            while self._inside:
                self._inside.popitem()[1].close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._admit, args=(sock,), name="door-guest", daemon=True).start()

    def _admit(self, sock: socket.socket) -> None:
        """Nothing of whoever lacks the token is looked at, and nobody may take long."""
        try:
            sock.settimeout(_NAME_S)
            if peer(sock)[1] not in (None, os.getuid()):
                raise PermissionError("another user")
            if not same_token(_read(sock, TOKEN_BYTES), self._token):
                raise PermissionError("a wrong token")
            (size,) = _SIZE.unpack(_read(sock, _SIZE.size))
            name = _read(sock, size).decode()
        except (OSError, UnicodeDecodeError):  # a stranger, or one that has died already
            sock.close()
            return
        sock.settimeout(None)
        stay_alert(sock, self._silence_s)
        with self._changed:
            self._inside[name] = sock
            self._changed.notify_all()


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("it hung up")
        data += more
    return data


def _wake(listener: socket.socket) -> None:
    """A thread that waits in `accept` ends, which closing alone does not do."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:  # systems that do not shut down listeners wake up when they are closed
        return
