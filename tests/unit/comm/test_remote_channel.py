"""Channels between processes: content, order and bounds."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.comm import spans
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.errors import ChannelClosed, ConfigError

pytestmark = pytest.mark.alone

Start = Callable[..., "subprocess.Popen[bytes]"]
MB = 2**20


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


@pytest.mark.parametrize("connect", ["direct", "socket"], indirect=True)
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
