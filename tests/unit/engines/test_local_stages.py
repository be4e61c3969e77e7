"""Stages over streams, across processes."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rlinf_core.api.engine import Host, HostSpec
from rlinf_core.comm import Stream
from rlinf_core.errors import ConfigError, RewardError, WorkerError
from rlinf_core.worker import WorkerGroup

Make = Callable[..., WorkerGroup]
Start = Callable[..., list[Host]]
MB = 2**20


def test_ten_thousand_items_come_through_two_stages_in_order(group_of: Make) -> None:
    first, second = group_of(1, "first"), group_of(1, "second")
    doubled = first.stage("double", Stream.of([i] for i in range(10_000)))
    again = second.stage("double", doubled)
    assert again.collect() == [4 * i for i in range(10_000)]
    assert (doubled.result, again.result) == ([10_000], [10_000])


def test_spread_depends_on_the_chunks_and_not_on_timing(group_of: Make) -> None:
    group = group_of(2)
    sizes = [5, 1, 1, 1, 1, 2, 3, 1]
    # loads: 5|0 -> 5|1 -> 5|2 -> 5|3 -> 5|4 -> 5|6 (2 to rank 1) -> 8|6 (3 to rank 0) -> 8|7
    ranks = [0, 1, 1, 1, 1, 1, 0, 1]
    expected = {(rank, i) for i, rank in enumerate(ranks)}
    for _ in range(3):
        stream = Stream.of([i] * size for i, size in enumerate(sizes))
        assert set(group.stage("tag", stream).collect()) == expected


def test_spread_goes_by_the_weight_given_and_ties_to_the_lowest_rank(group_of: Make) -> None:
    group = group_of(2)
    stream = Stream.of([[8], [1], [2], [4], [1]])
    got = group.stage("tag", stream, weight=lambda chunk: float(chunk[0])).collect()
    assert sorted(got) == [(0, 8), (1, 1), (1, 1), (1, 2), (1, 4)]
    assert sorted(group.stage("tag", Stream.of([[1], [1], [1]])).collect()) == [(0, 1), (0, 1), (1, 1)]


def test_broadcast_gives_every_chunk_to_every_rank(group_of: Make) -> None:
    group = group_of(2)
    stream = group.stage("double", Stream.of([[1], [2, 3]]), route="broadcast")
    assert sorted(stream.collect()) == [2, 2, 4, 4, 6, 6]
    assert stream.result == [3, 3]
    with pytest.raises(ConfigError, match="no route 'scatter'"):
        group.stage("double", Stream.of([]), route="scatter")  # type: ignore[arg-type]


def test_outputs_come_before_the_input_has_ended(group_of: Make) -> None:
    group = group_of(1)
    pulled = []

    def source() -> Iterator[list[int]]:
        for i in range(3):
            while i > len(pulled):
                time.sleep(0.001)
            yield [i]

    for chunk in group.stage("double", Stream.of(source())):
        pulled.append(chunk)
    assert pulled == [[0], [2], [4]]


def test_stages_of_three_groups_on_one_host_run_one_after_the_other(start: Start) -> None:
    host = start(HostSpec("rank0"), buffer_mb=1)
    other = start(HostSpec("other"), buffer_mb=1)
    rollout = WorkerGroup.create("rollout", "engine_workers:Probe", host, {}, ["cpu"], 0)
    reward = WorkerGroup.create("reward", "engine_workers:Probe", other, {"factor": 1}, ["cpu"], 0)
    actor = WorkerGroup.create("actor", "engine_workers:Probe", host, {}, ["cpu"], 0)
    # 8 MB pass through buffers of 1 MB while the consumer waits for the producer's process.
    produced = rollout.stage("burst", Stream.of([[0]]), count=8, size=MB)
    scored = reward.stage("double", produced)
    trained = actor.stage("gather", scored, route="broadcast")
    assert trained.collect() == [8]


def test_a_fast_producer_waits_for_a_slow_reader(group_of: Make) -> None:
    group = group_of(1, buffer_mb=1)
    stream = group.stage("endless", Stream.of([]), size=MB // 4)
    reader = iter(stream)
    next(reader)
    time.sleep(0.5)
    reader.close()  # type: ignore[attr-defined]
    # 1 MB may be under way, then one chunk more is made: 1 taken + 4 or 5 buffered + 1 waiting
    assert 4 <= group.call("items_taken").wait()[0] <= 8


def test_a_fast_source_waits_for_a_slow_stage(group_of: Make) -> None:
    group = group_of(1, buffer_mb=1)
    made = []

    def source() -> Iterator[list[bytes]]:
        for i in range(40):
            made.append(i)
            yield [bytes(MB // 4)]

    stream = iter(group.stage("slowly", Stream.of(source()), seconds=0.1))
    next(stream)
    next(stream)
    time.sleep(0.05)
    assert len(made) < 14
    stream.close()  # type: ignore[attr-defined]


def test_a_failing_stage_raises_its_own_error_downstream(group_of: Make) -> None:
    first, second = group_of(2, "first"), group_of(1, "second")
    source = Stream.of([i] for i in range(100))
    broken = first.stage("fails_at", source, bad=31)
    with pytest.raises(WorkerError, match=r"first\[1\]\.fails_at failed: ValueError: cannot do 31") as caught:
        second.stage("gather", broken).collect()
    assert "engine_workers.py" in caught.value.traceback
    assert second.call("echo", 1).wait() == [1]
    assert first.call("echo", 1).wait() == [1, 1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_of_ours_stays_reachable_through_a_stage_downstream(group_of: Make, ranks: int) -> None:
    broken = group_of(ranks, "first").stage("fails_at", Stream.of([[1], [2], [3]]), bad=2, how="ours")
    with pytest.raises(WorkerError, match="fails_at failed: RewardError") as caught:
        group_of(ranks, "second").stage("double", broken).collect()
    assert isinstance(caught.value.__cause__, RewardError)


def test_a_stage_never_completes_on_part_of_its_input(group_of: Make) -> None:
    first, second = group_of(1, "first"), group_of(1, "second")
    broken = first.stage("fails_at", Stream.of([i] for i in range(10)), bad=9)
    with pytest.raises(WorkerError, match="cannot do 9"):
        second.stage("gather", broken).collect()
    assert second.call("note", "x").wait() == [["x"]]


def test_a_stage_that_waits_for_its_turn_is_cancelled_when_its_source_fails(start: Start) -> None:
    host = start(HostSpec("rank0"))
    rollout = WorkerGroup.create("rollout", "engine_workers:Probe", host, {}, ["cpu"], 0)
    actor = WorkerGroup.create("actor", "engine_workers:Probe", host, {}, ["cpu"], 0)
    produced = rollout.stage("fails_at", Stream.of([[1], [2], [3]]), bad=3)
    with pytest.raises(WorkerError, match=r"rollout\[0\]\.fails_at failed: ValueError: cannot do 3"):
        actor.stage("gather", produced, route="broadcast").collect()
    assert actor.call("note", "x").wait(5) == [["x"]]


def test_two_hundred_steps_leave_no_thread_and_no_descriptor_behind(group_of: Make) -> None:
    first, second = group_of(2, "first"), group_of(1, "second")

    def step() -> None:
        stream = second.stage("double", first.stage("double", Stream.of([[i] for i in range(8)])))
        assert sorted(stream.collect()) == [4 * i for i in range(8)]

    step()
    gc.collect()  # what earlier tests left
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        step()
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before[0]
    # segments of shared memory are kept to be used again, one more where a step finds the others in use
    assert len(os.listdir("/proc/self/fd")) < before[1] + 10
    assert all(not host._pending for host, _ in [*first.members, *second.members])  # type: ignore[attr-defined]


def test_a_failing_consumer_stops_its_producer(group_of: Make) -> None:
    first, second = group_of(1, "first", buffer_mb=1), group_of(1, "second", buffer_mb=1)
    with pytest.raises(WorkerError, match=r"second\[0\]\.fails_at"):
        second.stage("fails_at", first.stage("endless", Stream.of([])), bad=bytes(8)).collect()
    assert first.call("echo", 1).wait(5) == [1]


def test_an_error_in_the_drivers_own_source_is_raised_as_it_is(group_of: Make) -> None:
    def source() -> Iterator[list[int]]:
        yield [1]
        raise KeyError("row 2")

    with pytest.raises(KeyError, match="row 2"):
        group_of(2).stage("double", Stream.of(source())).collect()


def test_an_error_in_a_mapped_function_is_raised_as_it_is(group_of: Make) -> None:
    group = group_of(1)
    stream = group.stage("double", Stream.of([[1], [2]])).map(lambda chunk: [1 // (chunk[0] - 4)])
    with pytest.raises(ZeroDivisionError):
        stream.collect()
    assert group.call("echo", 1).wait(5) == [1]


def test_reading_only_the_first_chunk_leaves_the_hosts_usable(group_of: Make) -> None:
    first, second = group_of(2, "first", buffer_mb=1), group_of(1, "second", buffer_mb=1)
    for chunk in second.stage("double", first.stage("endless", Stream.of([]), size=MB)):
        assert len(chunk) == 1
        break
    assert first.call("echo", 1).wait(5) == [1, 1]
    assert second.call("echo", 2).wait(5) == [2]


def test_a_stream_that_nobody_reads_is_cancelled_when_dropped(group_of: Make) -> None:
    group = group_of(1, buffer_mb=1)
    stream = group.stage("endless", Stream.of([]), size=MB)
    assert stream.peek() == [bytes(MB)]
    del stream
    assert group.call("echo", 1).wait(5) == [1]


def test_a_stage_may_end_before_its_input(group_of: Make) -> None:
    group = group_of(1)
    assert group.stage("first_only", Stream.of([i] for i in range(1_000_000))).collect() == [0]
    assert group.call("echo", 1).wait(5) == [1]


def test_only_marked_methods_are_stages(group_of: Make) -> None:
    with pytest.raises(WorkerError, match=r"no stage 'echo'; methods marked @stage: ask, burst, double"):
        group_of(1).stage("echo", Stream.of([])).collect()
