"""Connections to other machines, noticed and refused while something runs that should make none."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
HERE = "localhost,127.0.0.1,::1"


@contextmanager
def refused_connections() -> Iterator[list[str]]:
    """The addresses that this process, or HTTP clients of those it starts, try to reach meanwhile.

    In this process nothing but loopback addresses and Unix sockets can be connected to, and no other name
    is looked up. Child processes find a proxy in their environment that counts who comes and serves nobody.
    """
    tried: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=_serve_nobody, args=(proxy, tried), daemon=True).start()
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = {name: url for proxy in PROXIES for name in (proxy, proxy.lower())}
        with (
            mock.patch.dict(os.environ, {**names, "NO_PROXY": HERE, "no_proxy": HERE}),
            mock.patch.object(socket.socket, "connect", _connect(tried, socket.socket.connect)),
            mock.patch.object(socket.socket, "connect_ex", _connect(tried, socket.socket.connect_ex)),
            mock.patch.object(socket, "getaddrinfo", _look_up(tried, socket.getaddrinfo)),
        ):
            yield tried


def _connect(tried: list[str], really: Any) -> Any:  # Any: methods of sockets
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            tried.append(f"{address[0]}:{address[1]}")
            raise OSError(errno.ENETUNREACH, "connections to other machines are refused here")
        return really(self, address)

    return connect


def _look_up(tried: list[str], really: Any) -> Any:  # Any: a function of the standard library
    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and not _is_number(name) and name not in ("localhost", socket.gethostname()):
            tried.append(name)
            raise socket.gaierror(socket.EAI_NONAME, "names of other machines are not looked up here")
        return really(host, *args, **kwargs)

    return getaddrinfo


def _is_here(host: str) -> bool:
    return (
        ipaddress.ip_address(host.partition("%")[0]).is_loopback if _is_number(host) else host == "localhost"
    )


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _serve_nobody(proxy: socket.socket, tried: list[str]) -> None:
    while True:
        try:
            visitor, _ = proxy.accept()
        except OSError:  # closed: it is over
            return
        with visitor:
            visitor.settimeout(5.0)
            try:
                asked = visitor.recv(1024).partition(b"\r\n")[0].decode(errors="replace")
            except OSError as err:
                asked = f"nothing ({err})"
            tried.append(f"by a proxy: {asked}")
