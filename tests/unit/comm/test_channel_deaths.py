"""Channels between processes: how they end, and what happens when somebody dies."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.remote import RemoteChannel
from rlinf_core.errors import ChannelClosed, ConfigError, ConsumerDied, ProducerDied, RlinfError, WorkerError

pytestmark = pytest.mark.alone

Start = Callable[..., "subprocess.Popen[bytes]"]
MB = 2**20


def test_a_killed_producer_is_named_to_all_at_once(by_socket: Any, hub: ChannelHub, start: Start) -> None:
    handle = hub.create("c")
    channel = handle.connect("driver")
    process = start("put_and", "env[1]", handle, 3, "wait")
    assert [channel.get(timeout_s=20) for _ in range(3)] == [0, 1, 2]
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            by_socket(handle, "other").get(timeout_s=20)
        except RlinfError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    process.send_signal(signal.SIGKILL)
    with pytest.raises(ProducerDied, match=r"channel 'c': env\[1\] \(pid \d+\) died") as error:
        channel.get(timeout_s=20)
    thread.join(2)
    assert time.monotonic() - began < 1
    assert error.value.worker == "env[1]"
    assert [type(each) for each in caught] == [ProducerDied]
    with pytest.raises(ProducerDied):
        channel.put(1)
    with pytest.raises(ProducerDied):
        handle.connect("late").put(1)


def test_ending_without_goodbye_is_a_death_and_with_it_is_none(hub: ChannelHub, start: Start) -> None:
    polite, rude = hub.create("polite"), hub.create("rude")
    reader = polite.connect("driver")
    assert start("put_and", "env[0]", polite, 2, "leave").wait(20) == 0
    assert [reader.get(), reader.get()] == [0, 1]
    with pytest.raises(TimeoutError):
        reader.get(timeout_s=0.1)
    start("put_and", "env[0]", rude, 0, "end").wait(20)
    with pytest.raises(ProducerDied, match=r"env\[0\]"):
        rude.connect("driver").get(timeout_s=5)


def _put_many(channel: RemoteChannel[Any]) -> None:
    for number in range(100):
        channel.put(np.full(100_000, number), timeout_s=20)


def test_a_consumer_that_dies_with_items_is_named_to_the_producer(hub: ChannelHub, start: Start) -> None:
    handle = hub.create("c", capacity=3)
    channel = handle.connect("driver")
    start("hold", "rollout[2]", handle, 2, "kill")
    with pytest.raises(ConsumerDied, match=r"rollout\[2\] .* held 1 item") as error:
        _put_many(channel)
    assert error.value.worker == "rollout[2]"


def test_what_a_dead_consumer_held_goes_to_the_others_where_asked_for(hub: ChannelHub, start: Start) -> None:
    handle, results = hub.create("c", redeliver=True), hub.create("results")
    outgoing, incoming = handle.connect("driver"), results.connect("driver")
    for number in range(6):
        outgoing.put(np.full(100_000, number))
    dying = start("hold", "dying", handle, 2, "wait")
    while len(hub.loads("c")) == 0 and dying.poll() is None and _inside(hub, "c") > 4:
        time.sleep(0.01)
    start("consume", "living", handle, results, 0.0)
    got = [incoming.get(timeout_s=20)[1] for _ in range(4)]
    dying.kill()
    got.append(incoming.get(timeout_s=5)[1])
    outgoing.close()
    # the first of the two was done with when the second was asked for
    assert got == [2, 3, 4, 5, 1]
    assert list(incoming) == []


def _inside(hub: ChannelHub, name: str) -> int:
    with hub.lock:
        lanes = hub._channels[name].exchange._lanes.values()
        return sum(len(ready) for lane in lanes for ready in lane.ready.values())


def test_abandoning_frees_whoever_waits(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", capacity=1)
    outgoing, incoming = connect(handle, "a"), connect(handle, "b")
    outgoing.put(1)
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(outgoing.put(2)))
    waiting.start()
    time.sleep(0.05)
    incoming.abandon(ValueError("not wanted"))
    waiting.join(5)
    assert results == [False]
    with pytest.raises(ValueError, match="not wanted"):
        incoming.get(timeout_s=5)


def test_a_block_that_raises_ends_the_channel_with_its_error(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c")
    with pytest.raises(KeyError), connect(handle, "a"):
        raise KeyError("row 2")
    with pytest.raises(KeyError, match="row 2"):
        connect(handle, "b").get(timeout_s=5)


def test_items_stay_readable_after_goodbye_and_unread_ones_go_to_others(
    hub: ChannelHub, connect: Any
) -> None:
    handle = hub.create("c")
    outgoing, other = connect(handle, "a"), connect(handle, "c")
    with connect(handle, "b") as incoming:
        outgoing.put(np.full(MB, 1, np.uint8))
        got = incoming.get()
    for number in range(2, 5):
        outgoing.put(np.full(MB, number, np.uint8))
        assert other.get()[0] == number
    assert (got == 1).all()
    with pytest.raises(RlinfError, match="b has left channel 'c'"):
        incoming.get()


def test_errors_about_names_say_what_there_is(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("actions")
    with pytest.raises(ConfigError, match="a channel 'actions' already"):
        hub.create("actions")
    wrong = replace(handle, name="action")
    with pytest.raises(RlinfError, match=r"no channel 'action'; there are: actions\. Did you mean 'actions'"):
        connect(wrong, "a")
    assert len(pickle.dumps(handle)) < 300


def test_a_closed_hub_ends_its_channels(by_socket: Any, hub: ChannelHub) -> None:
    handle = hub.create("c")
    channels = [handle.connect("a"), by_socket(handle, "b")]
    hub.close()
    for channel in channels:
        with pytest.raises(ChannelClosed):
            channel.get(timeout_s=5)
        assert not channel.put(1)
    with pytest.raises(WorkerError, match="cannot reach channel 'c'"):
        handle.connect("c")


def test_many_channels_and_kills_leave_no_descriptor_behind(hub: ChannelHub, start: Start) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for round_ in range(3):
        handle = hub.create(f"c{round_}")
        channel = handle.connect("driver")
        process = start("produce", "p", handle, 0, 10_000, 50_000, None)
        for _ in range(5):
            channel.get(timeout_s=20)
        process.kill()
        with pytest.raises(ProducerDied):
            list(channel)
        channel.leave()
        hub.drop(f"c{round_}")
    del channel
    gc.collect()
    deadline = time.monotonic() + 2
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
