"""A hub, worker processes, and channels to it over a socket or directly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.ports import open_socket
from rlinf_core.comm.remote import RemoteChannel

NOBODY = "\0rlinf-nobody"  # an address of this machine where no hub answers, as on another machine
WORKER = Path(__file__).with_name("channel_worker.py")
sys.path.insert(0, str(WORKER.parent))
from channel_worker import argument  # noqa: E402


@pytest.fixture
def hub() -> Iterator[ChannelHub]:
    with ChannelHub("127.0.0.1") as made:
        yield made


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Runs a job of `channel_worker.py` in a process of its own."""
    started = []

    def run(job: str, worker: str, *arguments: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, str(WORKER), job, argument(worker, *arguments)]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def by_socket() -> Callable[[Any, str], RemoteChannel[Any]]:
    """Connects as from another process."""

    def connect(handle: Any, worker: str) -> RemoteChannel[Any]:
        port = open_socket(handle.address, handle.token, handle.name, worker)
        return RemoteChannel(port, handle.name, worker)

    return connect


@pytest.fixture(params=["direct", "socket", "elsewhere"])
def connect(request: pytest.FixtureRequest, by_socket: Any) -> Callable[[Any, str], RemoteChannel[Any]]:
    """Connects in each way."""
    if request.param == "elsewhere":
        return lambda handle, worker: replace(handle, address=NOBODY).connect(worker)
    return by_socket if request.param == "socket" else lambda handle, worker: handle.connect(worker)
