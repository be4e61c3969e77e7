"""Channels between processes: content, order, bounds, and deaths."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.comm import spans
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.ports import open_socket
from rlinf_core.comm.remote import RemoteChannel
from rlinf_core.errors import ChannelClosed, ConfigError, ConsumerDied, ProducerDied, RlinfError, WorkerError

WORKER = Path(__file__).with_name("channel_worker.py")
sys.path.insert(0, str(WORKER.parent))
from channel_worker import argument  # noqa: E402

Start = Callable[..., "subprocess.Popen[bytes]"]
MB = 2**20


@pytest.fixture
def hub() -> Iterator[ChannelHub]:
    with ChannelHub() as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(job: str, worker: str, *arguments: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, str(WORKER), job, argument(worker, *arguments)]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def _socket_channel(handle: Any, worker: str) -> RemoteChannel[Any]:
    """Connected as from another process."""
    port = open_socket(handle.address, handle.token, handle.name, worker)
    return RemoteChannel(port, handle.name, worker)


@pytest.fixture(params=["direct", "socket"])
def connect(request: pytest.FixtureRequest) -> Callable[[Any, str], RemoteChannel[Any]]:
    return _socket_channel if request.param == "socket" else lambda handle, worker: handle.connect(worker)


def test_arrays_and_tensors_come_back_from_another_process_writable(hub: ChannelHub, start: Start) -> None:
    there, back = hub.create("there"), hub.create("back")
    start("echo", "echo", there, back)
    outgoing, incoming = there.connect("driver"), back.connect("driver")
    for size in (0, 1, 1000, 65536, 10**6, 10**7):
        sent = {"a": np.arange(size), "t": torch.arange(size, dtype=torch.int16), "n": "x"}
        outgoing.put(sent)
        got = incoming.get(timeout_s=20)
        np.testing.assert_array_equal(got["a"], sent["a"])
        assert torch.equal(got["t"], sent["t"])
        assert got["n"] == "x"
        got["a"][:1] = 7
        got["t"][:1] = 7
    outgoing.close()
    with pytest.raises(ChannelClosed, match="'back' is closed and empty"):
        incoming.get(timeout_s=10)


def test_a_message_stays_as_it_is_while_a_view_of_it_lives_and_memory_is_used_again(
    hub: ChannelHub, connect: Any
) -> None:
    handle = hub.create("c")
    outgoing, incoming = connect(handle, "a"), connect(handle, "b")
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for number in range(50):
        outgoing.put(np.full(MB, number, np.uint8))
        array = incoming.get()
        if number % 10 == 0:
            kept.append(array[5:10])
        else:
            array[:] = 255
        del array
    assert [view.tolist() for view in kept] == [[number] * 5 for number in (0, 10, 20, 30, 40)]
    # at most: 5 kept, one taken and one under way, each known to the sender (2), the hub and the receiver
    assert len(os.listdir("/proc/self/fd")) - before <= 8 * 4
    pool = outgoing._parcels._pool
    assert len(pool._all) <= 8


def test_what_lies_in_shared_memory_already_is_not_copied(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c")
    outgoing, incoming = connect(handle, "a"), connect(handle, "b")
    tensor = outgoing.empty((100, 1000), torch.float32)
    tensor.fill_(3.0)
    array = outgoing.empty((7, 11), np.int64)
    array[:] = np.arange(77).reshape(7, 11)
    outgoing.put({"t": tensor, "part": tensor[10:20, :], "a": array})
    got = incoming.get()
    assert got["a"].tolist() == array.tolist()
    assert got["part"].shape == (10, 1000)
    tensor[0, 0] = 5.0  # not allowed to producers; shows that the memory is the same
    assert got["t"][0, 0] == 5.0
    got["part"][0, 0] = 6.0
    assert tensor[10, 0] == 6.0
    del tensor, array, got
    gc.collect()
    second = outgoing.empty((100, 1000), torch.float32)
    outgoing.put(second)
    assert len(outgoing._parcels._pool._all) <= 3, "released segments are used again"


def test_one_tensor_may_be_read_by_several_consumers(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("weights")
    outgoing = connect(handle, "actor[0]")
    readers = [connect(handle, f"rollout[{rank}]") for rank in range(3)]
    weights = outgoing.empty((1000,), np.float32)
    weights[:] = 2.5
    for rank in range(3):
        outgoing.put(weights, key=rank)
    got = [reader.get(key=rank) for rank, reader in enumerate(readers)]
    del weights
    gc.collect()
    for _ in range(20):
        outgoing.put(np.zeros(100_000), key="other")
        readers[0].get(key="other")
    assert all((each == 2.5).all() for each in got)


def test_a_full_key_never_blocks_another(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", capacity=2)
    channel = connect(handle, "driver")
    for number in range(2):
        assert channel.put(number, key="slow")
    with pytest.raises(TimeoutError, match=r"key 'slow' of channel 'c' had no room within 0\.05 s"):
        channel.put(2, key="slow", timeout_s=0.05)
    for number in range(100):
        assert channel.put(number, key=("free", 1))
        assert channel.get(key=("free", 1)) == number
    assert channel.get(key="slow") == 0
    assert channel.put(2, key="slow", timeout_s=5)
    assert [channel.get(key="slow", timeout_s=5) for _ in range(2)] == [1, 2]
    with pytest.raises(TimeoutError, match="nothing came through key 'slow' of channel 'c'"):
        channel.get(key="slow", timeout_s=0.05)


def test_bytes_bound_what_is_inside(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", capacity_bytes=4 * MB)
    outgoing, incoming = connect(handle, "a"), connect(handle, "b")
    passed = []

    def fill() -> None:
        for number in range(20):
            outgoing.put(np.full(MB, number, np.uint8))
            passed.append(number)

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.3)
    assert 4 <= len(passed) <= 5  # an eighth of the capacity may be on its way
    assert [int(incoming.get()[0]) for _ in range(20)] == list(range(20))
    thread.join(5)


def test_items_of_several_producers_come_in_the_order_of_their_numbers(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", ordered=True, producers=3, capacity=4)
    incoming = connect(handle, "reader")

    def produce(rank: int) -> None:
        channel = connect(handle, f"p[{rank}]")
        for order in range(rank, 60, 3):
            channel.put(f"item {order}", order=order)
        channel.finish()
        channel.leave()

    threads = [threading.Thread(target=produce, args=(rank,)) for rank in range(3)]
    for thread in reversed(threads):
        thread.start()
    assert list(incoming) == [f"item {order}" for order in range(60)]
    for thread in threads:
        thread.join(5)


def test_shares_follow_the_weights_and_not_the_timing(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", consumers=2)
    outgoing = connect(handle, "p")
    fast, slow = connect(handle, "fast"), connect(handle, "slow")
    for number, weight in enumerate([8, 1, 2, 4, 1, 3]):
        outgoing.put(number, weight)
    outgoing.close()
    got = [fast.get(consumer=0), fast.get(consumer=0)]
    with pytest.raises(ChannelClosed):
        fast.get(consumer=0)
    # loads: 8|0 -> 8|1 -> 8|3 -> 8|7 -> 8|8 -> 11|8 (a tie goes to the lowest)
    assert got == [0, 5]
    assert [slow.get(consumer=1) for _ in range(4)] == [1, 2, 3, 4]
    assert hub.loads("c") == {0: 11.0, 1: 8.0}
    with pytest.raises(ConfigError, match="hands out to consumers 0 to 1, and 2 asked"):
        slow.get(consumer=2)


def test_a_killed_producer_is_named_to_all_at_once(hub: ChannelHub, start: Start) -> None:
    handle = hub.create("c")
    channel = handle.connect("driver")
    process = start("put_and", "env[1]", handle, 3, "wait")
    assert [channel.get(timeout_s=20) for _ in range(3)] == [0, 1, 2]
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            _socket_channel(handle, "other").get(timeout_s=20)
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


def test_everything_passes_once_between_many_processes(hub: ChannelHub, start: Start) -> None:
    handle = hub.create("c", capacity_bytes=2 * MB, producers=2)
    results = hub.create("results", producers=2)
    for rank in range(2):
        start("produce", f"p[{rank}]", handle, 300 * rank, 300, 20_000, None)
        start("consume", f"c[{rank}]", handle, results, 0.0)
    got = list(results.connect("driver"))
    assert sorted(number for _, number in got) == list(range(600))
    assert {worker for worker, _ in got} == {"c[0]", "c[1]"}
    for rank in range(2):
        of_one = [number for worker, number in got if worker == f"c[{rank}]"]
        assert [n for n in of_one if n < 300] == sorted(n for n in of_one if n < 300), "order of a producer"


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
    wrong = type(handle)(handle.address, handle.token, "action")
    with pytest.raises(RlinfError, match=r"no channel 'action'; there are: actions\. Did you mean 'actions'"):
        connect(wrong, "a")
    assert len(pickle.dumps(handle)) < 300


def test_a_closed_hub_ends_its_channels(hub: ChannelHub) -> None:
    handle = hub.create("c")
    channels = [handle.connect("a"), _socket_channel(handle, "b")]
    hub.close()
    for channel in channels:
        with pytest.raises(ChannelClosed):
            channel.get(timeout_s=5)
        assert not channel.put(1)
    with pytest.raises(WorkerError, match="cannot reach channel 'c'"):
        handle.connect("c")


def test_threads_of_one_worker_share_a_channel(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c", capacity=8)
    channel = connect(handle, "w")
    sums: list[int] = []

    def consume(key: int) -> None:
        sums.append(sum(channel.get(key=key, timeout_s=20) for _ in range(300)))

    readers = [threading.Thread(target=consume, args=(key,)) for key in range(4)]
    for thread in readers:
        thread.start()
    for number in range(300):
        for key in range(4):
            channel.put(number, key=key)
    for thread in readers:
        thread.join(20)
    assert sums == [300 * 299 // 2] * 4


def test_waiting_is_written_down(hub: ChannelHub, connect: Any) -> None:
    handle = hub.create("c")
    channel = connect(handle, "w")
    threading.Timer(0.1, lambda: channel.put(1)).start()
    with spans.recording("w", "stage") as log:
        channel.get()
    assert [(span.kind, span.worker) for span in log.spans] == [("wait", "w")]
    assert 0.05 < log.spans[0].end - log.spans[0].start < 2


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
