"""Host processes beside their keepers."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rlinf_backend_ray.config import RayConfig
from rlinf_backend_ray.engine import RayEngine

from rlinf_core.api import HostSpec, WorkerSpec
from rlinf_core.errors import WorkerDied
from rlinf_core.hosting import LinkedHost

ECHO = WorkerSpec("w", "rlinf_core.testing.workers:EchoWorker")
pytestmark = pytest.mark.usefixtures("ray_here")


@pytest.fixture
def start() -> Iterator[Callable[..., list[Any]]]:
    engines = []

    def begin(*specs: HostSpec, **settings: Any) -> list[Any]:
        engines.append(RayEngine(RayConfig(**settings)))
        engines[-1].nodes(len([spec for spec in specs if spec.device is not None]))
        hosts = engines[-1].start(specs)
        for call in [host.create(ECHO) for host in hosts]:
            call.result(60)
        return list(hosts)

    yield begin
    for engine in engines:
        engine.stop()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_processes_of_the_drivers_node_share_memory_with_it_and_meet_at_its_address(
    start: Callable[..., list[Any]],
) -> None:
    device, other = start(HostSpec("a", device=0), HostSpec("b"))
    assert isinstance(device, LinkedHost)
    assert {host.wire.socket.family for host in (device, other)} == {socket.AF_UNIX}
    address, _, port = device.meeting_point().rpartition(":")
    assert address == device.process.node
    with socket.socket() as probe:
        probe.bind((address, int(port)))
    assert device.device == ""  # on the CPU


def test_a_runtime_environment_reaches_the_processes(start: Callable[..., list[Any]]) -> None:
    host = start(HostSpec("a", device=0), runtime_env={"env_vars": {"RLINF_CHECK": "7"}})[0]
    assert host.call("w", "environment", "RLINF_CHECK").result(30) == "7"
    paths = host.call("w", "environment", "PYTHONPATH").result(30).split(os.pathsep)
    assert not any(path.endswith("ray/thirdparty_files") for path in paths)


def test_a_process_ends_with_its_keeper_and_is_named(start: Callable[..., list[Any]]) -> None:
    host = start(HostSpec("a", device=0))[0]
    pausing = host.call("w", "pause", 60)
    os.kill(parent_of(host.process.pid), signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=r"w\.pause failed: process a \(pid \d+, node .*\) was lost with its"
    ):
        pausing.result(10)
    with pytest.raises(WorkerDied, match=r"w\.count cannot run"):
        host.call("w", "count").result(10)
