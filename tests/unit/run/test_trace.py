"""The trace of a run: valid JSON after every step, and bounded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.api.spans import HostSpan, Span
from rlinf_core.errors import RlinfError
from rlinf_core.run.trace import Trace


def _events(path: Path, kind: str = "X") -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text()) if event["ph"] == kind]


def _names(path: Path) -> dict[tuple[str, int, int], str]:
    found = _events(path, "M")
    return {
        (event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0): event["args"][
            "name"
        ]
        for event in found
    }


def _run(worker: str, start: float, end: float, samples: int = 0, host: str = "device0") -> HostSpan:
    return HostSpan(host, Span(worker, "train", "run", start, end, samples, 2 if samples else 0))


def test_hosts_are_processes_and_workers_are_threads_with_times_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    began = time.monotonic()
    trace = Trace(path)
    with trace.span("step"):
        pass
    now = time.monotonic()
    spans = [
        _run("actor[0]", now, now + 0.25, samples=8),
        _run("rollout[0]", now + 1, now + 2),
        _run("actor[1]", now, now + 3, host="device1"),
        HostSpan("device0", Span("actor[0]", "train", "wait", now + 0.1, now + 0.2)),
    ]
    trace.write(7, spans)
    assert _names(path) == {
        ("process_name", 0, 0): "driver",
        ("thread_name", 0, 0): "run",
        ("process_name", 1, 0): "device0",
        ("thread_name", 1, 0): "actor[0]",
        ("thread_name", 1, 1): "rollout[0]",
        ("process_name", 2, 0): "device1",
        ("thread_name", 2, 0): "actor[1]",
    }
    step, actor, rollout, other, wait = _events(path)
    assert (step["name"], step["pid"], step["args"]) == ("step", 0, {"step": 7})
    assert (actor["pid"], actor["tid"], actor["cat"]) == (1, 0, "run")
    assert actor["args"] == {"step": 7, "samples": 8, "chunks": 2}
    assert actor["dur"] == pytest.approx(250_000, abs=1)
    assert 0 <= actor["ts"] <= (now - began) * 1e6 + 1
    assert rollout["ts"] - actor["ts"] == pytest.approx(1e6, abs=1)
    assert (other["pid"], other["tid"]) == (2, 0)
    assert (wait["name"], wait["cat"], wait["tid"]) == ("wait", "wait", 0)


def test_it_is_valid_after_every_step_and_begins_with_the_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = Trace(path)
    trace.write(0, [])
    assert not path.exists()
    for step in range(1, 6):
        trace.write(step, [_run("a[0]", step, step + 1)])
        assert [event["args"]["step"] for event in _events(path)] == list(range(1, step + 1))
    trace.write(6, [])
    assert len(_events(path)) == 5


def test_a_long_run_keeps_its_first_and_its_last_steps_and_all_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = Trace(path, first=3, last=4)
    sizes = []
    for step in range(1, 101):
        late = [_run("late[0]", 0, 1, host="device1")] if step == 50 else []
        trace.write(step, [_run("a[0]", step, step + 0.5), *late])
        sizes.append(path.stat().st_size)
        kept = [event["args"]["step"] for event in _events(path) if event["pid"] == 1]
        assert kept[: min(3, step)] == list(range(1, min(3, step) + 1))
        tail = kept[3:]
        assert tail == list(range(step - len(tail) + 1, step + 1))
        assert min(step - 3, 4) <= len(tail) < 8
    assert max(sizes[60:]) < 1.1 * max(sizes[40:60])
    assert "late[0]" in _names(path).values()


def test_of_a_step_with_very_many_spans_the_longest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf_core.run.trace.STEP_EVENTS", 3)
    path = tmp_path / "trace.json"
    Trace(path).write(1, [_run("a[0]", 0, length) for length in (0.5, 0.1, 0.9, 0.3, 0.7)])
    assert sorted(event["dur"] for event in _events(path)) == [500_000, 700_000, 900_000]


def test_the_trace_of_an_earlier_part_of_the_run_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    Trace(path).write(1, [_run("a[0]", 0, 1)])
    resumed = Trace(path, resumed_step=12)
    assert len(_events(path)) == 1
    resumed.write(13, [_run("a[0]", 2, 3), _run("a[0]", 3, 4)])
    assert len(_events(path)) == 2
    assert len(_events(tmp_path / "trace-to-step-12.json")) == 1


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RlinfError, match=r"cannot write .*missing/trace.json: No such file"):
        Trace(tmp_path / "missing" / "trace.json").write(1, [_run("a[0]", 0, 1)])
