"""Messages and channels whose two ends share no memory: as between machines, over the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.comm.frames import Say, head
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.network import dial, interface_of, listen_at, place_of, stay_alert, unheard_s
from rlinf_core.comm.remote import ChannelHandle, RemoteChannel
from rlinf_core.comm.wire import Wire, pack
from rlinf_core.errors import WorkerError

NOBODY = "\0rlinf-nobody"
MB = 2**20


@pytest.fixture
def far_ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets of the network."""
    with listen_at("127.0.0.1") as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
        with here, there:
            stay_alert(here, 3.0)
            yield here, there


def from_afar(handle: ChannelHandle, worker: str) -> RemoteChannel[object]:
    return replace(handle, address=NOBODY).connect(worker)


def test_a_wire_of_the_network_carries_large_arrays_in_its_stream(
    far_ends: tuple[socket.socket, socket.socket],
) -> None:
    left, right = Wire(far_ends[0]), Wire(far_ends[1])
    array = np.arange(3 * MB, dtype=np.int32)
    sender = threading.Thread(target=lambda: left.send(3, 9, pack([array, "x"])))
    sender.start()
    message = right.receive()
    while message is not None and message.kind != 3:
        message = right.receive()
    sender.join()
    assert message is not None
    got, text = message.load()
    assert (message.call, text) == (9, "x")
    np.testing.assert_array_equal(got, array)
    got[0] = 7  # writable, and its own memory
    assert array[0] == 0
    assert not left._pool._all


def test_a_small_message_does_not_wait_behind_a_large_one(
    far_ends: tuple[socket.socket, socket.socket],
) -> None:
    left, right = Wire(far_ends[0]), Wire(far_ends[1])
    array = np.arange(8 * MB, dtype=np.int64)
    large = threading.Thread(target=lambda: left.send(3, 1, pack(array)))
    large.start()
    assert right.receive() is not None  # a piece: the large one is on its way
    small = [threading.Thread(target=lambda n=n: left.send(3, n, pack("now"))) for n in range(2, 6)]
    for thread in small:
        thread.start()
    came = []
    while len(came) < 5:
        message = right.receive()
        assert message is not None
        if message.kind == 3:
            came.append(message)
    for thread in (large, *small):
        thread.join(10)
    assert sorted(message.call for message in came[:4]) == [2, 3, 4, 5]
    assert came[4].call == 1
    np.testing.assert_array_equal(came[4].load(), array)


def test_large_messages_of_several_threads_arrive_whole(
    far_ends: tuple[socket.socket, socket.socket],
) -> None:
    left, right = Wire(far_ends[0]), Wire(far_ends[1])
    arrays = [np.full(MB + number, number) for number in range(4)]
    threads = [
        threading.Thread(target=lambda n=n: left.send(3, n, pack([arrays[n], arrays[n][:3]])))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    came = {}
    while len(came) < 4:
        message = right.receive()
        assert message is not None
        if message.kind == 3:
            came[message.call] = message.load()
    for thread in threads:
        thread.join(10)
    for number, (array, start) in came.items():
        np.testing.assert_array_equal(array, arrays[number])
        np.testing.assert_array_equal(start, arrays[number][:3])


@pytest.mark.parametrize("way", ["near to far", "far to near", "far to far"])
def test_arrays_pass_whole_between_workers_that_share_memory_with_the_hub_and_others(way: str) -> None:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        outgoing = from_afar(handle, "a") if way.startswith("far") else handle.connect("a")
        incoming = from_afar(handle, "b") if way.endswith("far") else handle.connect("b")
        lent = outgoing.empty((1001, 3), np.float64)
        lent[:] = np.arange(3003).reshape(1001, 3)
        sent = {"large": np.arange(MB), "small": np.arange(5), "lent": lent, "part": lent[7:9]}
        for _ in range(3):
            outgoing.put(sent)
        for _ in range(3):
            got = incoming.get(timeout_s=10)
            for name, array in sent.items():
                np.testing.assert_array_equal(got[name], array)
                assert got[name].ctypes.data % 8 == 0


def test_memory_of_a_producer_is_free_again_when_a_far_consumer_is_done() -> None:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        outgoing, incoming = handle.connect("a"), from_afar(handle, "b")
        for number in range(40):
            outgoing.put(np.full(MB, number, np.uint8))
            assert incoming.get(timeout_s=10)[-1] == number
        assert len(outgoing._parcels._pool._all) <= 4


def test_what_a_far_consumer_leaves_unread_goes_to_others() -> None:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        outgoing, leaving, staying = handle.connect("a"), from_afar(handle, "b"), handle.connect("c")
        for number in range(20):
            outgoing.put(np.full(MB // 4, number, np.uint8))
        first = leaving.get(timeout_s=10)[0]
        leaving.leave()
        got = [int(staying.get(timeout_s=10)[0]) for _ in range(19)]
        assert (int(first), got) == (0, list(range(1, 20)))


class Trap:
    """Something that a pickle would run."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was run",))


def test_nothing_is_unpickled_for_whoever_does_not_know_the_token() -> None:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        host, _, port = handle.elsewhere.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(b"0" * 32 + head(Say.HELLO, (Trap(),)))
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(100) == b""
        with socket.socket(socket.AF_UNIX) as near:  # of this machine, where the same holds
            near.settimeout(5)
            near.connect(handle.address)
            with contextlib.suppress(ConnectionError):
                near.sendall(head(Say.HELLO, (Trap(),)))
            with contextlib.suppress(ConnectionError):
                assert near.recv(100) == b""
        with pytest.raises(WorkerError, match=r"is gone|cannot reach"):
            replace(handle, address=NOBODY, token="0" * 32).connect("stranger")
        assert handle.connect("a").put(1)  # the others go on


def test_a_listener_of_this_machine_is_preferred_and_its_twin_is_for_others() -> None:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        with dial(handle.address, handle.elsewhere, handle.token) as near:
            assert near.family == socket.AF_UNIX
        with dial(NOBODY, handle.elsewhere, handle.token) as far:
            assert far.family == socket.AF_INET
    with pytest.raises(ConnectionRefusedError):
        dial(NOBODY, "", "")


def test_a_machine_that_answers_is_heard(far_ends: tuple[socket.socket, socket.socket]) -> None:
    far_ends[0].sendall(b"x")
    far_ends[1].recv(1)
    assert unheard_s(far_ends[0]) < 2.0
    near = socket.socketpair()
    with near[0], near[1]:
        assert unheard_s(near[0]) == 0.0


def test_an_address_has_its_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == ""
    with listen_at("127.0.0.1") as listener:
        assert place_of(listener).startswith("127.0.0.1:")
