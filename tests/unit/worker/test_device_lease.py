"""Workers that share a device: whose memory is there, and whose turn it is."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from rlinf_core.comm.spans import recording
from rlinf_core.errors import WorkerError
from rlinf_core.worker import Worker, WorkerContext
from rlinf_core.worker.lease import DeviceLease, Holding


class Lodger(Worker):
    """Writes down when it is moved."""

    def __init__(self, name: str, moves: list[str]) -> None:
        super().__init__(WorkerContext(name))
        self.moves = moves
        self.broken = ""

    def onload(self) -> None:
        self._move("on")

    def offload(self) -> None:
        self._move("off")

    def _move(self, how: str) -> None:
        if self.broken == how:
            raise OSError("no room")
        self.moves.append(f"{how} {self.context.name}")


@pytest.fixture
def moves() -> list[str]:
    return []


@pytest.fixture
def workers(moves: list[str]) -> dict[str, Lodger]:
    return {name: Lodger(name, moves) for name in "abcd"}


def _lease(workers: dict[str, Lodger], *lent: str) -> DeviceLease:
    """A lease where the workers given are not resident, and were built one after the other."""
    lease = DeviceLease(workers)
    for name in lent:
        lease.lend(name)
        with lease.turn(name):
            pass
    return lease


def test_while_all_are_resident_nobody_is_moved(workers: dict[str, Lodger], moves: list[str]) -> None:
    lease = _lease(workers)
    for name in "abab":
        with lease.turn(name):
            pass
    assert moves == []


def test_the_one_whose_turn_comes_is_brought_and_the_others_leave_first(
    workers: dict[str, Lodger], moves: list[str]
) -> None:
    lease = _lease(workers, "a", "b")
    assert moves == ["off a"]  # it made room while b was built
    moves.clear()
    for name in "aabba":
        with lease.turn(name):
            pass
    assert moves == ["off b", "on a", "off a", "on b", "off b", "on a"]


def test_resident_workers_move_nobody(workers: dict[str, Lodger], moves: list[str]) -> None:
    lease = _lease(workers, "a", "b")
    moves.clear()
    for name in "cbdb":
        with lease.turn(name):
            pass
    assert moves == []


def test_a_worker_may_need_others_beside_it_and_they_leave_when_their_room_is_needed(
    workers: dict[str, Lodger], moves: list[str]
) -> None:
    lease = _lease(workers, "a", "b", "c")
    moves.clear()
    with lease.turn("a"):
        with lease.joined("c"):
            assert moves == ["off c", "on a", "on c"]
        moves.clear()
    with lease.turn("a"):
        assert moves == ["off c"]


def test_who_waits_lets_others_in_and_comes_back_with_those_beside_it(
    workers: dict[str, Lodger], moves: list[str]
) -> None:
    lease = _lease(workers, "a", "b", "c")
    holding = Holding("a")
    lease.acquire(holding)
    with lease.joined("b"):
        lease.release(holding)
        with lease.turn("c"):
            pass
        moves.clear()
        lease.acquire(holding)
        assert moves == ["off c", "on a", "on b"]
    lease.release(holding)


def test_the_policy_can_change_while_workers_live(workers: dict[str, Lodger], moves: list[str]) -> None:
    lease = _lease(workers, "a", "b")
    moves.clear()
    lease.keep("a")
    assert moves == ["on a"]
    for name in "bab":
        with lease.turn(name):
            pass
    lease.lend("a")
    with lease.turn("b"):
        pass
    assert moves == ["on a", "off a"]


def test_a_worker_that_is_dropped_is_not_moved_any_more(workers: dict[str, Lodger], moves: list[str]) -> None:
    lease = _lease(workers, "a", "b")
    moves.clear()
    lease.forget("b")
    del workers["b"]
    with lease.turn("a"):
        pass
    assert moves == ["on a"]


@pytest.mark.parametrize(("broken", "how", "culprit"), [("b", "off", "b.offload"), ("a", "on", "a.onload")])
def test_a_worker_that_cannot_be_moved_is_named_and_the_turn_is_given_up(
    workers: dict[str, Lodger], moves: list[str], broken: str, how: str, culprit: str
) -> None:
    lease = _lease(workers, "a", "b")
    workers[broken].broken = how
    with pytest.raises(WorkerError, match=f"{culprit} failed: OSError: no room"), lease.turn("a"):
        pass
    workers[broken].broken = ""
    with lease.turn("a"):
        pass
    assert moves[-2:] == ["off b", "on a"]


def test_moves_are_written_down_under_the_name_of_who_was_moved(workers: dict[str, Lodger]) -> None:
    lease = _lease(workers, "a", "b")
    with recording("a", "train") as log, lease.turn("a"):
        pass
    assert [(span.worker, span.name, span.kind) for span in log.spans] == [
        ("b", "offload", "load"),
        ("a", "onload", "load"),
    ]


def test_four_threads_take_a_thousand_turns_each_and_none_is_left_behind(
    workers: dict[str, Lodger], moves: list[str]
) -> None:
    lease = _lease(workers, "a", "b", "c", "d")
    inside: list[str] = []
    order: list[str] = []
    begin = threading.Barrier(4)
    overlaps = []

    def take_turns(name: str) -> None:
        begin.wait()
        for _ in range(1000):
            with lease.turn(name):
                overlaps.extend(inside)
                inside.append(name)
                order.append(name)
                time.sleep(1e-5)  # long enough for the others to queue up
                inside.remove(name)

    threads = [threading.Thread(target=take_turns, args=(name,)) for name in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert overlaps == []
    assert Counter(order) == dict.fromkeys("abcd", 1000)
    assert min(Counter(order[:2000]).values()) > 400
    switches = moves[3:]  # after a, b and c made room while the next was built
    assert switches[::2] == [f"off {worker}" for worker in ["d", *[on[-1] for on in switches[1:-1:2]]]]
    assert all(move.startswith("on ") for move in switches[1::2])


def test_turns_are_taken_in_the_order_asked_for(workers: dict[str, Lodger]) -> None:
    lease = _lease(workers, "a", "b", "c", "d")
    order: list[str] = []

    def take_one(name: str) -> None:
        with lease.turn(name):
            order.append(name)

    threads = [threading.Thread(target=take_one, args=(name,)) for name in "cbda"]
    with lease.turn("a"):
        for thread in threads:
            thread.start()
            time.sleep(0.03)
    for thread in threads:
        thread.join(10)
    assert "".join(order) == "cbda"
