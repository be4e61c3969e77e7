"""Metric logs and trackers."""

from __future__ import annotations

import json
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
