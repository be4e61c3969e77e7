"""Messages over a socket pair."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from rlinf_core.comm import leases, segments
from rlinf_core.comm.wire import SHARED_FROM, Message, Wire, pack


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    left, right = socket.socketpair()
    with left, right:
        yield Wire(left), Wire(right)


def _through(ends: tuple[Wire, Wire], content: object, kind: int = 3, call: int = 2**40) -> Message:
    sender = threading.Thread(target=lambda: ends[0].send(kind, call, pack(content)))
    sender.start()
    message = ends[1].receive()
    sender.join()
    assert message is not None
    return message


def test_a_small_message_arrives_with_its_header(ends: tuple[Wire, Wire]) -> None:
    message = _through(ends, {"a": [1, "two"]})
    assert (message.kind, message.call, message.load()) == (3, 2**40, {"a": [1, "two"]})


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_000, SHARED_FROM - 1, SHARED_FROM, SHARED_FROM + 1])
def test_arrays_of_any_size_arrive_whole_aligned_and_writable(ends: tuple[Wire, Wire], size: int) -> None:
    sent = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    got = _through(ends, [sent, sent[::-1], "after"]).load()
    np.testing.assert_array_equal(got[0], sent)
    np.testing.assert_array_equal(got[1], sent[::-1])
    assert got[2] == "after"
    if size:
        got[0][0] = 1


def test_large_bodies_are_mapped_and_not_copied(ends: tuple[Wire, Wire]) -> None:
    sent = np.ones(SHARED_FROM, np.uint8)
    message = _through(ends, sent)
    assert not isinstance(message.body, bytearray)
    assert message.load().__array_interface__["data"][0] % 64 == 0


def test_more_buffers_than_one_system_call_takes_arrive_in_order(ends: tuple[Wire, Wire]) -> None:
    sent = [np.full(3, i) for i in range(3000)]
    got = _through(ends, sent).load()
    assert all(np.array_equal(a, b) for a, b in zip(sent, got, strict=True))


def test_a_message_stays_readable_while_parts_of_it_live(ends: tuple[Wire, Wire]) -> None:
    part = _through(ends, [np.arange(SHARED_FROM), np.arange(10)]).load()[1]
    gc.collect()
    assert part.tolist() == list(range(10))


def _read_all(ends: tuple[Wire, Wire]) -> None:
    """Let the sender read what was given back."""
    ends[1].send(9, 0, pack(None))
    while (message := ends[0].receive()) is not None and message.kind != 9:
        pass


def _memory(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_the_last_view_of_a_message_is_dropped(ends: tuple[Wire, Wire]) -> None:
    array = _through(ends, np.zeros(SHARED_FROM, np.uint8)).load()
    place, part = _memory(array), array[100:200]
    del array
    other = _through(ends, np.ones(SHARED_FROM, np.uint8)).load()
    assert _memory(other) != place
    assert not part.any()
    del part
    _read_all(ends)
    assert _memory(_through(ends, np.ones(SHARED_FROM, np.uint8)).load()) == place


def test_descriptors_are_few_however_many_messages_pass(ends: tuple[Wire, Wire]) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for size in range(SHARED_FROM, 4 * SHARED_FROM, 10_000):
        array = _through(ends, np.full(size, size % 251, np.uint8)).load()
        assert (array == size % 251).all()
        del array
        _read_all(ends)
    assert len(os.listdir("/proc/self/fd")) <= before + 3 * 8


def test_many_live_messages_use_up_neither_the_pool_nor_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "_MOST", 3)
    monkeypatch.setattr(leases, "_MOST_MAPPED", 5)
    monkeypatch.setattr(segments, "_ONCE_FROM", 2 * SHARED_FROM)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    left, right = socket.socketpair()
    with left, right:
        ends = Wire(left), Wire(right)
        sizes = [SHARED_FROM, 3 * SHARED_FROM] * 8
        kept = [_through(ends, np.full(size, i, np.uint8)).load() for i, size in enumerate(sizes)]
        assert len(os.listdir("/proc/self/fd")) <= before + 2 + 2 * 3 + 5
        assert [int(array[-1]) for array in kept] == list(range(16))
    del kept, ends
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_concurrent_senders_do_not_mix_their_messages(ends: tuple[Wire, Wire]) -> None:
    def send(seed: int) -> None:
        for i in range(50):
            ends[0].send(1, seed, pack(np.full(200_000, seed * 100 + i)))

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(150):
        message = ends[1].receive()
        assert message is not None
        array = message.load()
        assert (array == array[0]).all()
        seen[message.call].append(int(array[0]) - message.call * 100)
    assert all(order == list(range(50)) for order in seen.values())


@pytest.mark.parametrize("unread", [False, True])
def test_a_lost_peer_is_the_end_and_not_an_exception(unread: bool) -> None:
    left, right = socket.socketpair()
    if unread:
        left.send(b"never read")
    right.close()
    with left:
        assert Wire(left).receive() is None


def test_a_peer_lost_within_a_message_is_the_end() -> None:
    left, right = socket.socketpair()
    whole = socket.socketpair()
    Wire(whole[0]).send(1, 1, pack("x" * 1000))
    left.sendall(whole[1].recv(500))
    left.close()
    with right, whole[0], whole[1]:
        assert Wire(right).receive() is None


def test_packing_does_not_import_torch_or_numpy() -> None:
    script = (
        "import sys; from rlinf_core.comm.wire import pack; pack([1, {'a': b'x'}]); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
