"""Stages whose chunks go to whichever rank asks for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_core.comm import Stream
from rlinf_core.errors import RewardError, WorkerError
from rlinf_core.worker import WorkerGroup
from rlinf_core.worker.stage_run import Router, _SharedRun

Make = Callable[..., WorkerGroup]
MB = 2**20


def test_a_rank_that_is_busy_with_something_else_gets_what_is_left(group_of: Make) -> None:
    """Rank 1 sleeps until rank 0 has taken four chunks; the fifth is made when it has come back."""
    group = group_of(2)
    back = threading.Event()

    def chunks() -> Iterator[list[int]]:
        yield from ([i] for i in range(4))
        assert back.wait(20)
        yield from ([i] for i in range(4, 40))

    sleeping = group.call_rank(1, "sleep", 0.6)
    stage = group.stage("ask", Stream.of(chunks()), route="shared")
    got = []
    for chunk in stage:
        got += chunk
        if len(got) == 4:
            assert got == [(0, 0), (0, 1), (0, 2), (0, 3)]
            sleeping.result()
            back.set()
    assert sorted(item for _, item in got) == list(range(40))
    assert sorted(stage.result[0] + stage.result[1]) == list(range(40))
    assert stage.result[1], "rank 1 never asked"


def test_one_rank_takes_everything_in_order(group_of: Make) -> None:
    stage = group_of(1).stage("ask", Stream.of([i] for i in range(300)), route="shared")
    assert stage.collect() == [(0, i) for i in range(300)]
    assert stage.result == [list(range(300))]


def test_of_the_chunks_that_wait_the_heaviest_is_taken_first(group_of: Make) -> None:
    """All are there before the rank asks."""
    group, there = group_of(1), threading.Event()

    def chunks() -> Iterator[list[int]]:
        yield from ([3], [9], [4], [7])
        there.set()

    sleeping = group.call_rank(0, "sleep", 1.0)
    stage = group.stage("ask", Stream.of(chunks()), route="shared", weight=sum)
    assert there.wait(20)
    sleeping.result()
    assert stage.collect() == [(0, 9), (0, 7), (0, 4), (0, 3)]


def test_nothing_to_share_is_an_end_for_all(group_of: Make) -> None:
    stage = group_of(2).stage("ask", Stream.of([]), route="shared")
    assert stage.collect() == []
    assert stage.result == [[], []]


def test_more_than_fits_into_the_buffers_comes_through(group_of: Make) -> None:
    stage = group_of(2).stage("ask", Stream.of([bytes(16 * MB)] for _ in range(40)), route="shared")
    assert sum(len(item) for _, item in stage.collect()) == 640 * MB


def test_half_of_the_chunks_is_never_taken_for_all_of_them(group_of: Make) -> None:
    def failing() -> Iterator[list[int]]:
        yield [1]
        raise RewardError("no more")

    group = group_of(2)
    stage = group.stage("ask", Stream.of(failing()), route="shared")
    with pytest.raises(RewardError, match="no more"):
        stage.collect()
    assert group.call("echo", 5).wait() == [5, 5]


@pytest.mark.parametrize(("how", "said"), [("raise", "cannot do 3"), ("die", "SIGKILL|signal 9")])
def test_a_rank_that_fails_with_a_chunk_is_named_and_the_others_are_not_kept_waiting(
    group_of: Make, how: str, said: str
) -> None:
    group = group_of(2)
    sleeping = group.call_rank(0, "sleep", 0.3)
    stage = group.stage("ask", Stream.of([[1], [2], [3]]), route="shared", bad=3, how=how)
    with pytest.raises(WorkerError, match=said) as raised:
        stage.collect()
    assert raised.value.worker == "probe[1]"
    sleeping.result()


def test_who_stops_looking_stops_the_ranks(group_of: Make) -> None:
    group = group_of(2)
    stage = group.stage("ask", Stream.of([i] for i in range(10**9)), route="shared")
    for _ in stage:
        break
    stage.cancel()
    assert group.call("echo", 5).wait(20) == [5, 5]


def test_a_rank_that_has_just_taken_the_last_chunk_is_not_closed_by_one_that_finds_none() -> None:
    """The first rank takes the only chunk and is slow to hand it over; the second has found by then that
    there are no more."""

    class Call:
        def __init__(self) -> None:
            self.got: list[list[int]] = []
            self.over = threading.Event()

        def __iter__(self) -> Iterator[list[int]]:
            yield []
            if self.got or self.over.wait(10):
                yield from self.got
            assert self.over.wait(10)

        def send(self, chunk: list[int]) -> None:
            assert not self.over.is_set(), "closed before its last chunk"
            self.got.append(chunk)

        def close(self) -> None:
            self.over.set()

        def cancel(self) -> None:
            self.over.set()

    calls: list[Any] = [Call(), Call()]
    ready = threading.Event()

    def source() -> Iterator[list[int]]:
        assert ready.wait(10)
        yield [7]

    run = _SharedRun(calls, Stream.of(source()), Router(2, "shared", len))
    take = run._work.get

    def slowly(*args: Any, **kwargs: Any) -> list[int]:
        work = take(*args, **kwargs)
        time.sleep(0.3)
        return work

    run._work.get = slowly  # type: ignore[method-assign]
    ready.set()
    assert list(run.outputs()) == [[7]]
