"""Weights, streams and channels between two machines that a slow link joins: 12.5 MB a second, 10 ms."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.api import Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.stream import Stream
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.worker import WorkerGroup

sys.path.insert(0, str(Path(__file__).parent))
from far_machine import FarMachine
from slow_link import SlowLink, Switch, why_not

pytestmark = [pytest.mark.slow, pytest.mark.alone]
RATE, DELAY_S = 12.5e6, 0.01
MB = 2**20


@pytest.fixture(scope="module")
def link() -> Iterator[SlowLink]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = SlowLink(RATE, DELAY_S)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def far(link: SlowLink) -> Iterator[list[Host]]:
    machine = FarMachine(link, ["far0", "far1"])
    yield machine.hosts
    machine.stop()


@pytest.fixture(scope="module")
def near() -> Iterator[list[Host]]:
    engine = LocalEngine(LocalConfig())
    yield engine.start([HostSpec("near0"), HostSpec("near1")])
    engine.stop()


def group(name: str, kind: str, hosts: list[Host]) -> WorkerGroup:
    return WorkerGroup.create(name, f"far_workers:{kind}", hosts, {}, ["cpu"] * len(hosts), 0)


def test_weights_cross_the_link_once_whoever_waits_there(
    link: SlowLink, near: list[Host], far: list[Host]
) -> None:
    actor, takers = group("actor", "Sender", near[:1]), group("taker", "Taker", [*far, near[1]])
    sync = WeightSync(actor, takers)
    size = 2 * (3000 * 300 + 2 * 700 * 1000)
    for number, (share, bytes_most) in enumerate(((1.0, 1.0), (1.0, 0.65), (0.001, 0.02), (0.001, 0.02))):
        wanted = actor.call("train", share).wait()[0]
        sent, began = link.sent_bytes(), time.monotonic()
        sync()
        took, sent = time.monotonic() - began, link.sent_bytes() - sent
        print(f"{share:.1%} of {size / 1e6:.1f} MB changed: {sent / 1e6:.2f} MB in {took:.2f} s")
        assert takers.call("held").wait() == [wanted] * 3, number
        assert sent < 1.1 * bytes_most * size + 100_000
        assert took < 2.5 * sent / RATE + 2.0
        if number == 0:
            assert sent > size
            assert took > 0.9 * size / RATE
    for each in (actor, takers):
        each.drop().wait()


def test_a_small_message_passes_a_large_one_on_the_link(far: list[Host]) -> None:
    worker = group("worker", "Far", far[:1])
    array = np.arange(4 * MB)
    began = time.monotonic()
    found: list[int] = []
    large = threading.Thread(target=lambda: found.append(worker.call_rank(0, "total", array).result()))
    large.start()
    times = []
    while large.is_alive():
        asked = time.monotonic()
        assert worker.call_rank(0, "answer").result(30) == "here"
        times.append(time.monotonic() - asked)
    whole = time.monotonic() - began
    print(f"{array.nbytes / 1e6:.0f} MB in {whole:.2f} s, small ones {statistics.median(times):.3f} s each")
    assert found == [int(array.sum())]
    assert whole > 0.9 * array.nbytes / RATE
    assert statistics.median(times) < 0.3 * whole
    worker.drop().wait()


def test_a_stream_keeps_its_order_and_its_items_over_the_link(far: list[Host]) -> None:
    worker = group("worker", "Far", far[:1])
    arrays = [np.full(MB // 8 if number % 3 else 5, number) for number in range(12)]
    doubled = worker.stage("double", Stream.of([each] for each in arrays)).collect()
    assert len(doubled) == len(arrays)
    for one, two in zip(arrays, doubled, strict=True):
        np.testing.assert_array_equal(2 * one, two)
    worker.drop().wait()


def test_channels_cross_the_link_and_a_slow_one_does_not_hold_up_another(
    link: SlowLink, far: list[Host]
) -> None:
    workers = group("worker", "Far", far)
    with ChannelHub(link.near) as hub:
        names = ("large", "large-back", "small", "small-back")
        large, large_back, small, small_back = (hub.create(name, capacity_bytes=4 * MB) for name in names)
        calls = [
            workers.call_rank(0, "pass_on", large, large_back, 8),
            workers.call_rank(1, "pass_on", small, small_back, 50),
        ]
        here = [each.connect("driver") for each in (large, large_back, small, small_back)]
        arrays = [np.full(MB // 8, number) for number in range(8)]
        putting = threading.Thread(target=lambda: [here[0].put(each) for each in arrays])
        putting.start()
        began = time.monotonic()
        for number in range(50):
            here[2].put(number)
        assert [here[3].get(timeout_s=30) for _ in range(50)] == list(range(50))
        small_took = time.monotonic() - began
        for array in arrays:
            np.testing.assert_array_equal(here[1].get(timeout_s=30), array)
        putting.join(30)
        assert small_took < time.monotonic() - began
        for call in calls:
            call.result(30)
        for each in here:
            each.leave()
    workers.drop().wait()


def test_weights_for_many_machines_leave_this_one_once(near: list[Host]) -> None:
    """Those at a switch pass them on to each other where they are more than a few."""
    switch = Switch(4, RATE)
    machines = []
    try:
        machines = [FarMachine(place, [f"far{number}"]) for number, place in enumerate(switch.places)]
        takers = group("taker", "Taker", [host for machine in machines for host in machine.hosts])
        actor = group("actor", "Sender", near[:1])
        few = WorkerGroup("taker", takers.members[:3])
        size = 2 * (3000 * 300 + 2 * 700 * 1000)
        copies, times = [], []
        for receivers in (few, takers):
            sync = WeightSync(actor, receivers)
            wanted = actor.call("train", 1.0).wait()[0]
            sent, began = switch.sent_bytes(), time.monotonic()
            sync()
            times.append(time.monotonic() - began)
            copies.append((switch.sent_bytes() - sent) / size)
            assert receivers.call("held").wait() == [wanted] * receivers.size
        assert 3.0 < copies[0] < 3.5
        assert 1.0 < copies[1] < 1.3
        print(f"one by one to 3: {times[0]:.2f} s, in a chain of 4: {times[1]:.2f} s")
        wanted = actor.call("train", 0.001).wait()[0]
        sync()
        assert takers.call("held").wait() == [wanted] * 4
        actor.drop().wait()
    finally:
        for machine in machines:
            machine.stop()
        switch.stop()
