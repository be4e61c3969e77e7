"""Processes that die: workers, and drivers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_core.api.engine import Host, HostSpec, WorkerSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm import Stream
from rlinf_core.comm.wire import SHARED_FROM
from rlinf_core.errors import ConfigError, WorkerError
from rlinf_core.worker import WorkerGroup

pytestmark = pytest.mark.alone

Make = Callable[..., WorkerGroup]
Start = Callable[..., list[Host]]


def test_a_killed_worker_fails_its_call_at_once_with_its_last_words(group_of: Make) -> None:
    group = group_of(2)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"probe\[1\]\.die failed: .*SIGKILL.*") as caught:
        group.call_rank(1, "die").result(timeout_s=5)
    assert time.monotonic() - began < 2
    assert caught.value.worker == "probe[1]"
    assert "last words" in str(caught.value)
    assert group.call_rank(0, "echo", 1).result() == 1


def test_an_exit_code_is_reported_and_later_calls_fail_too(group_of: Make) -> None:
    group = group_of(1)
    with pytest.raises(WorkerError, match="ended with exit code 3"):
        group.call("exit", 3).wait()
    with pytest.raises(WorkerError, match=r"probe\[0\]\.echo cannot run: process probe0 .*exit code 3"):
        group.call("echo", 1).wait()
    with pytest.raises(WorkerError, match=r"probe\[0\]\.double cannot run"):
        group.stage("double", Stream.of([[1]])).collect()


def test_a_worker_killed_from_outside_fails_every_call_on_it(group_of: Make) -> None:
    group = group_of(1)
    pid = group.call("facts").wait()[0]["pid"]
    calls = [group.call("sleep", 30), group.call("echo", 1)]
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(WorkerError, match="SIGKILL"):
            call.wait(timeout_s=5)


def test_a_worker_killed_inside_a_stage_is_named_to_whoever_reads_downstream(group_of: Make) -> None:
    first, second = group_of(2, "first"), group_of(1, "second")
    began = time.monotonic()
    dying = first.stage("fails_at", Stream.of([i] for i in range(50)), bad=21, how="die")
    with pytest.raises(WorkerError, match=r"first\[1\]\.fails_at failed: .*SIGKILL"):
        second.stage("double", dying).collect()
    assert time.monotonic() - began < 5
    assert second.call("echo", 1).wait(5) == [1]
    assert first.call_rank(0, "echo", 1).result(5) == 1


@pytest.mark.parametrize(("how", "text"), [("raise", "ValueError: the cause"), ("die", "SIGKILL")])
def test_the_cause_is_raised_and_not_the_broken_collective_of_the_others(
    group_of: Make, how: str, text: str
) -> None:
    with pytest.raises(WorkerError, match=rf"probe\[1\]\.fail_on failed: .*{text}"):
        group_of(3).call("fail_on", 1, how).wait()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "text"), [("raise", "ValueError: the cause"), ("die", "SIGKILL")])
def test_a_real_collective_that_lost_a_rank_reports_that_rank(
    start: Start, tmp_path: Path, how: str, text: str
) -> None:
    hosts = start(HostSpec("a"), HostSpec("b"))
    group = WorkerGroup.create("p", "engine_workers:Collective", hosts, {}, ["cpu"] * 2, 0)
    group.call("connect", str(tmp_path / "store")).wait()
    assert group.stage("train", Stream.of([[1]]), route="broadcast", bad=-1, how=how).collect() == [2.0, 2.0]
    with pytest.raises(WorkerError, match=rf"p\[0\]\.train failed: .*{text}"):
        group.stage("train", Stream.of([[1]]), route="broadcast", bad=0, how=how).collect()


def test_one_failed_rank_is_reported_while_the_others_still_run(group_of: Make) -> None:
    group = group_of(2)
    began = time.monotonic()
    waiting = group.call_rank(0, "sleep", 3.0)
    with pytest.raises(WorkerError, match=r"probe\[1\]\.sleep failed"):
        group.call("sleep", "long").wait()
    assert time.monotonic() - began < 2
    assert not waiting.done()


def test_the_log_folder_gets_what_a_worker_prints(start: Start, tmp_path: Path) -> None:
    host = start(HostSpec("a", log=str(tmp_path / "logs" / "a.log")))[0]
    host.create(WorkerSpec("p[0]", "engine_workers:Probe")).result()
    with pytest.raises(WorkerError, match=r"the last lines it printed:\nlast words"):
        host.call("p[0]", "die").result(5)
    assert "last words" in (tmp_path / "logs/a.log").read_text()


def test_a_process_that_cannot_start_says_why(start: Start) -> None:
    with pytest.raises(
        WorkerError, match=r"(?s)process a .*ended with exit code 1; the last lines.*PYTHONHASHSEED"
    ):
        start(HostSpec("a", env={"PYTHONHASHSEED": "odd"}))


def test_stop_ends_busy_idle_and_unwilling_processes_in_time() -> None:
    engine = LocalEngine(LocalConfig())
    hosts = engine.start([HostSpec("a"), HostSpec("b"), HostSpec("c")])
    for host, target in zip(hosts, ["Probe", "Probe", "Mute"], strict=True):
        host.create(WorkerSpec("w", f"engine_workers:{target}")).result()
    child = hosts[0].call("w", "start_child").result()
    busy = hosts[1].call("w", "sleep", 60)
    pids = [hosts[0].call("w", "facts").result()["pid"], child]
    began = time.monotonic()
    engine.stop(timeout_s=1.0)
    assert time.monotonic() - began < 3
    assert not any(_alive(pid) for pid in pids)
    assert not Path(f"/proc/{pids[0]}").exists(), "a host is left as a zombie"
    with pytest.raises(WorkerError, match=r"w\.sleep failed: process b .*was stopped"):
        busy.result()
    engine.stop()


def test_a_message_that_cannot_be_sent_is_an_error_and_not_a_hang(
    group_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    group = group_of(1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WorkerError, match=r"bytes cannot be sent to process probe0: .*No space left"):
        group.call("sink", bytes(SHARED_FROM))
    assert group.call("echo", 1).wait(5) == [1]


def test_settings_out_of_range_are_refused() -> None:
    for key, value in (("buffer_mb", 0), ("timeout_s", -1.0), ("start_timeout_s", 0.0)):
        with pytest.raises(ConfigError, match=f"engine.{key}"):
            LocalConfig(**{key: value})  # type: ignore[arg-type]


DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what nohup starts ignores it
sys.path.insert(0, {here!r})
from rlinf_core.api.engine import HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm import Stream
from rlinf_core.comm.wire import SHARED_FROM
from rlinf_core.worker import WorkerGroup
hosts = LocalEngine(LocalConfig()).start([HostSpec("a"), HostSpec("b")])
group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {{}}, ["cpu"] * 2, 0)
pids = [f["pid"] for f in group.call("facts").wait()] + [group.call_rank(0, "start_child").result()]
stream = group.stage("endless", Stream.of([]), size=2**20)
stream.peek()
print(*pids, flush=True)
{then}
"""
WAIT = "group.call('sleep', 600).wait()"


@contextlib.contextmanager
def _driver(then: str):  # type: ignore[no-untyped-def]
    script = DRIVER.format(here=str(Path(__file__).parent), then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3
        try:
            yield process, pids
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_driver_however_it_ends(how: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    with _driver(WAIT) as (driver, pids):
        time.sleep(0.2)
        began = time.monotonic()
        driver.send_signal(how)
        driver.wait(3)
        while any(_alive(pid) for pid in pids):
            assert time.monotonic() - began < 3
            time.sleep(0.02)
        if how is signal.SIGINT:
            assert driver.stderr is not None
            assert "KeyboardInterrupt" in driver.stderr.read()
    assert set(os.listdir("/dev/shm")) <= before


def test_a_driver_that_just_ends_takes_its_processes_with_it_and_prints_nothing() -> None:
    with _driver("") as (driver, pids):
        assert driver.wait(5) == 0
        assert not any(_alive(pid) for pid in pids)
        assert driver.stderr is not None
        assert driver.stderr.read() == ""


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # orphans wait for whatever adopts them to reap them
