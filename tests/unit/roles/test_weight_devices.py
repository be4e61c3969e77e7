"""Weights from device to device: broadcasts, here by gloo between processes that pretend to have one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rlinf_core.api import Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm.transport import Transport
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.worker import WorkerGroup

sys.path.insert(0, str(Path(__file__).parent))
from weight_workers import Sent, parameters

Make = Callable[..., tuple[WorkerGroup, WorkerGroup]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    engine = LocalEngine(LocalConfig())
    yield engine.start([HostSpec(f"host{number}") for number in range(4)])
    engine.stop()


@pytest.fixture
def made(hosts: list[Host]) -> Iterator[Make]:
    """An actor on the accelerator A, and receivers on others; they are dropped afterwards."""
    kept: list[WorkerGroup] = []

    def make(accelerators: list[str], devices: list[str] | None = None, **options: Any) -> Any:
        count = len(accelerators)
        places = devices or ["cpu"] * (1 + count)
        own = {"accelerator": "" if devices else "cuda A"}
        actor = WorkerGroup.create("actor", "weight_workers:Sender", hosts[:1], own, places[:1], 0)
        options |= {} if devices else {"accelerators": accelerators}
        chosen = hosts[1 : 1 + count]
        takers = WorkerGroup.create("rollout", "weight_workers:Taker", chosen, options, places[1:], 0)
        kept.append(WorkerGroup("all", [*actor.members, *takers.members]))
        return actor, takers

    yield make
    for group in kept:
        group.drop().wait()


def held(receivers: WorkerGroup) -> list[Sent]:
    return receivers.call("held").wait()


def test_a_broadcast_reaches_those_on_other_devices_beside_those_on_none(made: Make) -> None:
    actor, receivers = made(["cuda B", "", "cuda C"], dtype="bfloat16")
    sync = WeightSync(actor, receivers)
    for version in range(3):
        sync()
        assert held(receivers) == [(version, parameters(version))] * 3
        actor.call("train").wait()
    assert sync._parties.transports() == [Transport.GROUP, Transport.SHARED_MEMORY]
    assert receivers.call("dtypes").wait() == [{"bfloat16", "int64"}] * 3


def test_one_that_comes_later_is_broadcast_to_and_then_all_are(made: Make) -> None:
    actor, receivers = made(["cuda B", "cuda C"])
    late = receivers.members.pop()
    sync = WeightSync(actor, receivers)
    for _ in range(2):
        sync()
        actor.call("train").wait()
    sync()
    receivers.members.append(late)
    sync.join()
    assert held(receivers) == [(2, parameters(2))] * 2
    actor.call("train").wait()
    sync()
    assert held(receivers) == [(3, parameters(3))] * 2
    del receivers.members[0]
    actor.call("train").wait()
    sync()
    assert held(receivers) == [(4, parameters(4))]


def test_what_is_taken_and_given_later_goes_by_host_memory(made: Make) -> None:
    actor, receivers = made(["cuda B"])
    sync = WeightSync(actor, receivers)
    sync()
    for version in range(3):
        taken = sync.take()
        actor.call("train").wait()
        sync.give(taken)
        assert held(receivers) == [(version, parameters(version))]
    assert sync._parties.transports() == [Transport.SHARED_MEMORY]


def test_one_on_the_same_device_is_given_handles_of_its_own(made: Make) -> None:
    """On the CPU torch's handles are copies; that a version is whole is what is seen here."""
    actor, receivers = made(["cuda A", "cuda A", "cuda B"])
    sync = WeightSync(actor, receivers)
    for version in range(3):
        sync()
        assert held(receivers) == [(version, parameters(version))] * 3
        actor.call("train").wait()
    assert sync._parties.transports() == [Transport.CUDA_IPC, Transport.GROUP]


def test_those_who_may_be_started_again_while_the_actor_trains_go_by_host_memory(made: Make) -> None:
    actor, receivers = made(["cuda B"])
    receivers.healer = cast(Any, object())
    sync = WeightSync(actor, receivers)
    sync._parties.admit()
    assert sync._parties.transports() == [Transport.SHARED_MEMORY]


def test_where_devices_do_not_do_what_they_should_host_memory_is_used(
    made: Make, caplog: pytest.LogCaptureFixture
) -> None:
    actor, receivers = made(["cuda A", "cuda B"], opens_no_handles=True)
    sync = WeightSync(actor, receivers)
    with caplog.at_level(logging.WARNING):
        sync()
    assert "weights cannot pass from device to device, and go by host memory" in caplog.text
    actor.call("train").wait()
    sync()
    assert held(receivers) == [(1, parameters(1))] * 2
    assert sync._parties.transports() == [Transport.SHARED_MEMORY]


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"]])
def test_gpus_pass_weights_to_each_other(made: Make, devices: list[str]) -> None:
    if len(set(devices)) > torch.cuda.device_count():
        pytest.skip("needs a CUDA device for each process")
    actor, receivers = made([""], devices)
    sync = WeightSync(actor, receivers)
    for version in range(3):
        sync()
        assert held(receivers) == [(version, parameters(version))]
        actor.call("train").wait()
    one = len(set(devices)) == 1
    assert sync._parties.transports() == [Transport.CUDA_IPC if one else Transport.GROUP]
