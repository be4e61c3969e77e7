"""The inline engine: the same calls and stages, in the calling thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from rlinf_core.api.engine import HostSpec
from rlinf_core.builtin.engines.inline import InlineEngine
from rlinf_core.comm import Stream
from rlinf_core.errors import ConfigError, RewardError, WorkerError
from rlinf_core.plugins.specs import NoConfig
from rlinf_core.worker import WorkerGroup


@pytest.fixture
def groups() -> Iterator[tuple[WorkerGroup, WorkerGroup]]:
    engine = InlineEngine(NoConfig())
    hosts = engine.start([HostSpec("rank0", env={"WORLD_SIZE": "1"}), HostSpec("reward")])
    yield tuple(
        WorkerGroup.create(name, "engine_workers:Probe", [host], {}, ["cpu"], 7)
        for name, host in zip(("first", "second"), hosts, strict=True)
    )  # type: ignore[misc]
    engine.stop()


Groups = tuple[WorkerGroup, WorkerGroup]


def test_calls_run_here_and_now(groups: Groups) -> None:
    facts = groups[0].call("facts").wait()[0]
    assert (facts["pid"], facts["thread"], facts["name"]) == (os.getpid(), True, "first[0]")
    call = groups[0].call("sleep", 0.02)
    assert call.done()
    assert 0.02 <= call.durations[0] < 0.5


def test_stages_are_lazy_and_start_no_thread(groups: Groups) -> None:
    first, second = groups
    pulled: list[int] = []

    def source() -> Iterator[list[int]]:
        for i in range(3):
            pulled.append(i)
            yield [i]

    before = threading.active_count()
    doubled = first.stage("double", Stream.of(source()))
    stream = second.stage("double", doubled)
    assert pulled == []
    assert stream.peek() == [0]
    assert pulled == [0]
    assert stream.collect() == [0, 4, 8]
    assert (doubled.result, stream.result) == ([3], [3])
    assert threading.active_count() == before


def test_an_exception_is_the_cause_of_the_error_that_names_the_worker(groups: Groups) -> None:
    first, second = groups
    with pytest.raises(WorkerError, match=r"first\[0\]\.fail failed: ValueError: no") as caught:
        first.call("fail", "no").wait()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(WorkerError) as reward:
        first.call("fail_as_reward").wait()
    assert isinstance(reward.value.__cause__, RewardError)
    broken = first.stage("fails_at", Stream.of([[1], [2]]), bad=2)
    with pytest.raises(WorkerError, match=r"first\[0\]\.fails_at failed: ValueError: cannot do 2"):
        second.stage("gather", broken).collect()


def test_an_error_in_the_drivers_own_source_names_the_stage_that_pulled_it(groups: Groups) -> None:
    def source() -> Iterator[list[int]]:
        yield [1]
        raise KeyError("row 2")

    with pytest.raises(WorkerError, match=r"KeyError: 'row 2'"):
        groups[0].stage("double", Stream.of(source())).collect()


def test_reading_only_the_first_chunk_ends_the_stage(groups: Groups) -> None:
    for chunk in groups[0].stage("endless", Stream.of([])):
        assert len(chunk) == 1
        break
    assert groups[0].call("items_taken").wait() == [1]


def test_torch_has_the_threads_that_a_process_of_its_own_would_have() -> None:
    before = torch.get_num_threads()
    engine = InlineEngine(NoConfig())
    device, reward = engine.start([HostSpec("device0", threads=before + 2), HostSpec("reward")])
    WorkerGroup.create("first", "engine_workers:Probe", [device], {}, ["cpu"], 7)
    WorkerGroup.create("second", "engine_workers:Probe", [reward], {}, ["cpu"], 7)
    assert torch.get_num_threads() == before + 2
    engine.stop()
    assert torch.get_num_threads() == before


def test_more_than_one_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of 2 ranks, and this engine runs one rank; set ranks=1"):
        InlineEngine(NoConfig()).start([HostSpec("rank0", env={"WORLD_SIZE": "2"})])
    hosts = InlineEngine(NoConfig()).start([HostSpec("a"), HostSpec("b")])
    with pytest.raises(ConfigError, match=r"worker p\[0\] is one of 2 ranks"):
        WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu"] * 2, 0)
