"""Calls on workers in other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rlinf_core.api.engine import Host, HostSpec, WorkerSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.errors import ConfigError, RewardError, WorkerError
from rlinf_core.worker import WorkerGroup

Make = Callable[..., WorkerGroup]
Start = Callable[..., list[Host]]


def test_every_rank_knows_who_it_is(group_of: Make) -> None:
    facts = group_of(2).call("facts").wait()
    assert [(f["name"], f["rank"], f["world_size"], f["seed"]) for f in facts] == [
        ("probe[0]", 0, 2, 7),
        ("probe[1]", 1, 2, 7),
    ]
    assert len({os.getpid(), *(f["pid"] for f in facts)}) == 3
    assert all(f["thread"] for f in facts)


def test_rank_arguments_and_shared_arguments_reach_the_workers(start: Start) -> None:
    hosts = start(HostSpec("a"), HostSpec("b"))
    own = [{"factor": 3}, {"factor": 5}]
    group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu", "cuda:1"], 0, own)
    facts = group.call("facts").wait()
    assert [(f["factor"], f["device"]) for f in facts] == [(3, "cpu"), (5, "cuda:1")]


def test_workers_of_one_host_see_one_another_and_themselves(start: Start) -> None:
    hosts = start(HostSpec("a"))
    first = WorkerGroup.create("first", "engine_workers:Probe", hosts, {}, ["cpu"], 0)
    WorkerGroup.create("second", "engine_workers:Probe", hosts, {}, ["cpu"], 0)
    assert first.call("facts").wait()[0]["peers"] == ["first[0]", "second[0]"]
    assert first.call("peer_is_this_object", "first[0]").wait() == [True]


def test_the_environment_is_the_hosts_and_threads_do_not_spin(start: Start) -> None:
    hosts = start(HostSpec("a", env={"RANK": "3"}, threads=2))
    group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu"], 0)
    env = group.call("facts").wait()[0]["env"]
    assert (env["RANK"], env["OMP_NUM_THREADS"], env["OMP_WAIT_POLICY"]) == ("3", "2", "PASSIVE")


def test_a_host_is_pinned_to_its_cores_and_foreign_cores_are_refused(start: Start) -> None:
    core = max(os.sched_getaffinity(0))
    hosts = start(HostSpec("a", cores=(core,)))
    group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu"], 0)
    assert group.call("affinity").wait() == [[core]]
    with pytest.raises(ConfigError, match=r"host b asks for cores \[4096\]"):
        start(HostSpec("b", cores=(4096,)))


def test_a_host_starts_without_torch(group_of: Make) -> None:
    assert group_of(1).call("facts").wait()[0]["torch"] is False


def test_calls_run_in_the_order_made(group_of: Make) -> None:
    group = group_of(1)
    calls = [group.call("note", i) for i in range(50)]
    assert calls[-1].wait() == [list(range(50))]
    assert calls[9].wait() == [list(range(10))]


def test_ranks_run_at_the_same_time_and_durations_are_the_methods_own(group_of: Make) -> None:
    group = group_of(2)
    began = time.perf_counter()
    call = group.call("sleep", 0.4)
    call.wait()
    assert time.perf_counter() - began < 0.75
    assert all(0.39 < seconds < 0.6 for seconds in call.durations)


def test_an_exception_names_the_worker_and_carries_its_traceback(group_of: Make) -> None:
    group = group_of(2)
    with pytest.raises(WorkerError, match=r"probe\[1\]\.fail failed: ValueError: no way") as caught:
        group.call_rank(1, "fail", "no way").result()
    assert caught.value.worker == "probe[1]"
    assert "engine_workers.py" in caught.value.traceback
    assert group.call("echo", "still here").wait() == ["still here"] * 2


def test_an_error_of_ours_stays_reachable_as_the_cause(group_of: Make) -> None:
    with pytest.raises(WorkerError) as caught:
        group_of(1).call("fail_as_reward").wait()
    assert isinstance(caught.value.__cause__, RewardError)
    assert str(caught.value.__cause__) == "5 of 8 samples could not be scored"


def test_an_unknown_method_or_target_is_an_error_that_says_what_there_is(start: Start) -> None:
    hosts = start(HostSpec("a"))
    with pytest.raises(WorkerError, match="not a subclass of"):
        WorkerGroup.create("p", "engine_workers:NotAWorker", hosts, {}, ["cpu"], 0)
    group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu"], 0)
    with pytest.raises(WorkerError, match="has no method 'jump'"):
        group.call("jump").wait()
    with pytest.raises(WorkerError, match=r"no worker 'q\[0\]'.*p\[0\]"):
        hosts[0].call("q[0]", "echo", 1).result()
    with pytest.raises(WorkerError, match="already has a worker named"):
        hosts[0].create(WorkerSpec("p[0]", "engine_workers:Probe")).result()


def test_what_cannot_be_pickled_fails_the_call_and_not_the_host(group_of: Make) -> None:
    group = group_of(1)
    with pytest.raises(WorkerError, match="unpicklable"):
        group.call("unpicklable").wait()
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        group.call("echo", lambda: None)
    assert group.call("echo", 1).wait() == [1]


def test_a_wait_with_a_deadline_names_who_is_late(group_of: Make) -> None:
    group = group_of(2)
    with pytest.raises(WorkerError, match=r"probe\[1\].*sleep.*0\.2 s"):
        group.call_rank(1, "sleep", 1.0).result(timeout_s=0.2)
    with pytest.raises(WorkerError, match=r"probe\[0\], probe\[1\]: sleep has not ended within 0\.2 s"):
        group.call("sleep", 1.0).wait(timeout_s=0.2)


def test_a_process_that_stays_silent_too_long_is_reported(group_of: Make) -> None:
    group = group_of(1, timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"probe\[0\]\.sleep.*silent for 0\.5 s.*engine\.timeout_s"):
        group.call("sleep", 20).wait()
    assert time.monotonic() - began < 3


def test_host_names_must_differ() -> None:
    with pytest.raises(ConfigError, match="given twice: a"):
        LocalEngine(LocalConfig()).start([HostSpec("a"), HostSpec("a")])


@dataclass
class Box:
    inner: dict[str, Any] = field(default_factory=dict)


def test_arrays_travel_whole_and_arrive_writable(group_of: Make) -> None:
    group = group_of(1)
    sent = {
        "large": np.arange(200_000, dtype=np.int64).reshape(200, 1000),
        "small": np.arange(5, dtype=np.float32),
        "strided": np.arange(40_000)[::3],
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "empty": np.zeros((0, 3)),
        "bools": np.array([True, False]),
        "text": "x" * 300_000,
    }
    got = group.call("echo", sent).wait()[0]
    for name, value in sent.items():
        np.testing.assert_array_equal(got[name], value)
    got["large"][0, 0] = got["small"][0] = 9
    assert got["fortran"].flags.f_contiguous


def test_tensors_travel_whole_in_every_form(group_of: Make) -> None:
    import torch

    group = group_of(1)
    sent = [
        torch.randn(300, 400),
        torch.randn(300, 400).to(torch.bfloat16),
        torch.randn(4, 5).t(),
        torch.ones(1).expand(7),
        torch.tensor([True, False]),
        torch.zeros(0, 3, dtype=torch.int32),
        torch.tensor(3.5, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(6, requires_grad=True),
        torch.randn(3, 3).to_sparse(),
    ]
    got = group.call("echo", [Box({"t": tensor}) for tensor in sent]).wait()[0]
    for before, after in zip(sent, got, strict=True):
        tensor = after.inner["t"]
        assert (tensor.dtype, tensor.shape) == (before.dtype, before.shape)
        assert tensor.requires_grad == before.requires_grad
        assert torch.equal(tensor.to_dense(), before.to_dense())
    parameter = group.call("echo", torch.nn.Parameter(torch.ones(2), requires_grad=False)).wait()[0]
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad
    got[0].inner["t"][0, 0] = 1.0
