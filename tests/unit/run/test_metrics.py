"""Metric logs and trackers."""

from __future__ import annotations

import json
import threading
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.api import Tracker
from rlinf_core.run.metrics import JsonLines, TrackerSet, jsonable


def test_a_resumed_log_drops_what_will_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    first = JsonLines(path)
    for step in range(4):
        first.write({"step": step})
    path.open("a").write('{"step": 4, "cut')
    JsonLines(path, resumed_step=2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    JsonLines(tmp_path / "m.jsonl").write({"step": 1, "x": np.float32(0.5)})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"step": 1, "x": 0.5}


def test_samples_reach_trackers_as_json_whatever_an_answer_is() -> None:
    answers = [np.arange(3), np.float64(0.5), Decimal("1.50"), {"unit": "m"}, date(2026, 1, 31)]
    assert [jsonable({"answer": answer})["answer"] for answer in answers] == [
        [0, 1, 2],
        0.5,
        "1.50",
        {"unit": "m"},
        "2026-01-31",
    ]


class Fragile(Tracker):
    """Fails at its second step."""

    def __init__(self) -> None:
        super().__init__(None)
        self.seen: list[int] = []

    def start(self, output: Path, run_config: Any, resumed_step: int) -> None:
        pass

    def log(self, step: int, metrics: Any) -> None:
        if step == 2:
            raise OSError("no route to server")
        self.seen.append(step)

    def finish(self, error: BaseException | None) -> None:
        self.seen.append(-1)


def test_a_failing_tracker_is_reported_once_and_hurts_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    good, bad = Fragile(), Fragile()
    good.log = lambda step, metrics: good.seen.append(step)  # type: ignore[method-assign]
    trackers = TrackerSet({"good": good, "bad": bad}, said.append)
    trackers.start(tmp_path, {}, 0)
    for step in (1, 2, 3):
        trackers.log(step, {})
    trackers.finish(None)
    assert good.seen == [1, 2, 3, -1]
    assert bad.seen == [1]
    assert said == ["tracker 'bad' failed and is off for the rest of the run: no route to server"]


class Stuck(Fragile):
    """Waits at its second step for a server that does not answer, or leaves the process."""

    def __init__(self, *, leaves: bool = False) -> None:
        super().__init__()
        self.leaves = leaves
        self.released = threading.Event()
        self.threads: set[str] = set()

    def log(self, step: int, metrics: Any) -> None:
        self.threads.add(threading.current_thread().name)
        if step == 2 and self.leaves:
            raise SystemExit(3)
        if step == 2:
            self.released.wait(30.0)
        self.seen.append(step)


def test_a_tracker_that_hangs_is_given_up_and_the_others_get_everything(tmp_path: Path) -> None:
    said: list[str] = []
    good, stuck = Fragile(), Stuck()
    good.log = lambda step, metrics: good.seen.append(step)  # type: ignore[method-assign]
    trackers = TrackerSet({"stuck": stuck, "good": good}, said.append, patience_s=0.2)
    trackers.start(tmp_path, {}, 0)
    for step in (1, 2, 3):
        trackers.log(step, {})
    trackers.finish(None)
    stuck.released.set()
    assert good.seen == [1, 2, 3, -1]
    assert said == ["tracker 'stuck' failed and is off for the rest of the run: no answer within 0.2 s"]


def test_a_tracker_that_leaves_the_process_leaves_alone(tmp_path: Path) -> None:
    said: list[str] = []
    leaving = Stuck(leaves=True)
    trackers = TrackerSet({"leaving": leaving}, said.append)
    for step in (1, 2, 3):
        trackers.log(step, {})
    trackers.finish(None)
    assert said == ["tracker 'leaving' failed and is off for the rest of the run: 3"]


def test_a_tracker_does_everything_in_one_thread_that_ends_with_the_run(tmp_path: Path) -> None:
    tracker = Stuck()
    trackers = TrackerSet({"own": tracker}, lambda text: None)
    for step in (1, 3):
        trackers.log(step, {})
    trackers.finish(None)
    assert tracker.threads == {"tracker-own"}
    assert "tracker-own" not in {thread.name for thread in threading.enumerate()}
