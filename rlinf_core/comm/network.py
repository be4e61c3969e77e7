"""Sockets that processes meet at: those of this machine, and those between machines."""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
from pathlib import Path

TOKEN_BYTES = 32  # that whoever connects sends first
_BACKLOG = 128
_UNSENT_BYTES = 128 * 1024  # that the system may hold back of a connection
_ANSWER_S = 10.0
_LAST_ACK = 8 + 12 * 4  # where tcp_info has the milliseconds since the other end was heard
_TCP_INFO_BYTES = 104
GONE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET})


def new_token() -> str:
    """A secret of `TOKEN_BYTES` characters."""
    return secrets.token_hex(TOKEN_BYTES // 2)


def same_token(given: bytes, wanted: str) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(given, wanted.encode())


class LocalListener:
    """A listening socket for this machine, without a name in the file system where that can be."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder: Path | None = None
        if sys.platform == "linux":
            self.socket.bind(f"\0rlinf-{os.getpid()}-{secrets.token_hex(8)}")
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="rlinf-"))
            self.socket.bind(str(self._folder / "socket"))
        self.socket.listen(_BACKLOG)
        address = self.socket.getsockname()
        self.address: str = address.decode() if isinstance(address, bytes) else str(address)

    def close(self) -> None:
        """Stop listening, and leave nothing behind."""
        self.socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def peer(sock: socket.socket) -> tuple[int, int | None]:
    """Process and user at the other end of a socket of this machine, where the system tells."""
    if not hasattr(socket, "SO_PEERCRED") or sock.family != socket.AF_UNIX:
        return 0, None
    size = struct.calcsize("3i")
    pid, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def listen_at(address: str) -> socket.socket:
    """A listening socket for other machines, at this address of ours and any port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def place_of(sock: socket.socket) -> str:
    """`address:port` of a listening socket."""
    name = sock.getsockname()
    return f"{name[0]}:{name[1]}"


def dial(local: str, elsewhere: str, token: str) -> socket.socket:
    """Connect to a listener of this machine, or to its twin for other machines, and show the token. Raises
    `OSError`.

    Which of them answers shows where the two sit: processes that meet at a local socket share memory.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(local)
        sock.sendall(token.encode())
        return sock
    except (ConnectionRefusedError, FileNotFoundError):
        sock.close()
        if not elsewhere:
            raise
    except BaseException:
        sock.close()
        raise
    host, _, port = elsewhere.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=_ANSWER_S)
    sock.settimeout(None)
    sock.sendall(token.encode())
    return sock


def stay_alert(sock: socket.socket, silence_s: float) -> None:
    """Let the system ask every second whether the other machine is there, and send at once."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # so that small messages pass large ones
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(silence_s)))


def unheard_s(sock: socket.socket) -> float:
    """How long the other machine has not answered; 0 on this machine, and where the system does not tell.

    A machine answers also while its processes are busy, so this is about the machine and the way to it.
    """
    if sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # closed: whoever reads it knows
        return 0.0
    milliseconds: int = struct.unpack_from("I", info, _LAST_ACK)[0]
    return milliseconds / 1000


def interface_of(address: str) -> str:
    """The network interface that has this address; "" where none has or the system does not tell."""
    if sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:  # an interface without an address of this family
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
