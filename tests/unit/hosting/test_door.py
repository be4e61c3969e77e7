"""Host processes that come in through the driver's door."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rlinf_core.api.engine import HostSpec, WorkerSpec
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.hosting import ChildProcess, Door, LinkedHost, LinkLimits

NOBODY = "\0rlinf-nobody"


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", silence_s=3.0)
    yield made
    made.close()


@pytest.mark.parametrize(("local", "family"), [(True, socket.AF_UNIX), (False, socket.AF_INET)])
def test_whoever_has_a_ticket_comes_in_by_name_the_shortest_way(
    door: Door, local: bool, family: socket.AddressFamily
) -> None:
    ticket = door.ticket if local else replace(door.ticket, local=NOBODY)
    with ticket.enter("device3", 3.0) as there, door.wait_for("device3", 5.0) as here:
        assert here.family == there.family == family
        there.sendall(b"hello")
        assert here.recv(10) == b"hello"


def test_a_stranger_does_not_come_in(door: Door) -> None:
    for ticket in (replace(door.ticket, token="0" * 32), replace(door.ticket, token="0" * 32, local=NOBODY)):
        # The door may have shut before the stranger has said its name.
        with contextlib.suppress(ConnectionError), ticket.enter("device3", 3.0) as there:
            there.settimeout(5.0)
            assert there.recv(1) == b""
    with pytest.raises(WorkerError, match=r"process device3 has not reported to the driver within 0\.1 s"):
        door.wait_for("device3", 0.1)


def test_a_guest_that_says_nothing_keeps_nobody_out(door: Door) -> None:
    host, _, port = door.ticket.elsewhere.rpartition(":")
    with socket.create_connection((host, int(port))), door.ticket.enter("b", 3.0):
        began = time.monotonic()
        door.wait_for("b", 5.0).close()
        assert time.monotonic() - began < 2.0


def test_nobody_comes_in_through_a_closed_door(door: Door) -> None:
    door.close()
    with pytest.raises(OSError, match="refused"):
        door.ticket.enter("late", 3.0)


def test_a_process_of_another_machine_works_without_shared_memory_and_its_death_is_told(door: Door) -> None:
    numpy = pytest.importorskip("numpy")
    sock = replace(door.ticket, local=NOBODY).enter("a", 3.0)
    spec = HostSpec("a", env={"PYTHONPATH": os.pathsep.join(sys.path)})
    process = ChildProcess(spec, sock, 2**20)
    host = LinkedHost("a", door.wait_for("a", 5.0), process, LinkLimits(2**20))
    try:
        host.wait_ready()
        host.create(WorkerSpec("w", "rlinf_core.testing.workers:EchoWorker")).result(30)
        array = numpy.arange(10**6)
        assert (host.call("w", "echo", array).result(30) == array).all()
        with pytest.raises(WorkerDied, match=r"w\.die failed: process a \(pid \d+\) was killed by SIGKILL"):
            host.call("w", "die", "last words").result(30)
    finally:
        host.finish()
