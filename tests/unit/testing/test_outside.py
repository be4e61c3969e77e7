"""Connections to other machines are noticed and refused."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request

import pytest

from rlinf_core.testing.outside import refused_connections

FETCH = "import urllib.request; urllib.request.urlopen('http://192.0.2.1/x', timeout=20)"


def test_another_machine_is_refused_by_number_and_by_name() -> None:
    with refused_connections() as tried:
        with pytest.raises(OSError, match="other machines are refused"):
            socket.create_connection(("192.0.2.1", 80), timeout=5)
        with pytest.raises(socket.gaierror, match="not looked up"):
            socket.create_connection(("example.invalid", 443), timeout=5)
    assert tried == ["192.0.2.1:80", "example.invalid"]


def test_clients_of_child_processes_come_to_a_proxy() -> None:
    with refused_connections() as tried:
        done = subprocess.run([sys.executable, "-c", FETCH], capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert tried == ["by a proxy: GET http://192.0.2.1/x HTTP/1.1"]


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, refused_connections() as tried:
        with socket.create_connection(server.getsockname(), timeout=5):
            pass
        with pytest.raises(OSError, match="closed connection"):
            urllib.request.build_opener().open("http://192.0.2.1/", timeout=5)  # by the proxy that is set
    assert tried == ["by a proxy: GET http://192.0.2.1/ HTTP/1.1"]
