"""What a report reads from a run's folder; every number is worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import RlinfError
from rlinf_core.report.reading import differences, flat, read_run, spread_samples, thinned
from rlinf_core.report.timeline import read_timeline
from rlinf_core.run.notes import Notes


def a_run(
    folder: Path, settings: str = "seed: 3\ntrain:\n  steps: 4\n", **files: list[dict[str, Any]]
) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(settings)
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_a_metric_is_read_at_its_steps_and_a_repeated_step_counts_once(
    tmp_path: Path,
) -> None:
    metrics = [
        {"step": 0, "eval/accuracy": 0.25},
        {"step": 1, "train/reward": 0.5},
        {"step": 2, "train/reward": 0.75, "eval/accuracy": 0.5},
        {"step": 2, "train/reward": 1.0},
    ]
    run = read_run(a_run(tmp_path / "one", metrics=metrics))
    assert (run.curves["train/reward"].steps, run.curves["train/reward"].values) == ([1, 2], [0.5, 1.0])
    assert (run.curves["eval/accuracy"].steps, run.curves["eval/accuracy"].values) == ([0, 2], [0.25, 0.5])
    assert (run.name, run.steps, run.wanted) == ("one", 2, 4)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "one", metrics=[{"step": 1, "train/reward": 0.5}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/rew')
    assert read_run(folder).curves["train/reward"].steps == [1]


def test_long_curves_are_means_over_equally_many_steps() -> None:
    curve = thinned({step: float(step) for step in range(1, 8)}, points=3)
    assert curve.steps == [3, 6, 7]
    assert curve.values == [2.0, 5.0, 7.0]


def test_samples_are_of_steps_spread_over_the_run_with_the_first_and_the_last(tmp_path: Path) -> None:
    samples = [{"step": step, "replica": replica} for step in range(1, 102) for replica in range(4)]
    folder = a_run(tmp_path / "one", samples=samples)
    kept = spread_samples(folder / "samples.jsonl", most=20)
    assert [sample["step"] for sample in kept[::4]] == [1, 26, 51, 76, 101]
    assert len(kept) == 20


def test_settings_are_flat_and_only_those_that_differ_are_compared(tmp_path: Path) -> None:
    assert flat({"algo": {"name": "a", "clip": [0.2, 0.3]}, "reward": [{"name": "r", "weight": 1.0}]}) == {
        "algo.name": "a",
        "algo.clip": "[0.2, 0.3]",
        "reward[0].name": "r",
        "reward[0].weight": "1.0",
    }
    one = read_run(a_run(tmp_path / "one", "seed: 3\noutput: a\nalgo: {name: x}\n"))
    two = read_run(a_run(tmp_path / "two", "seed: 4\noutput: b\nalgo: {name: x, k: 1}\n"))
    assert differences([one, two]) == [("algo.k", ["–", "1"]), ("seed", ["3", "4"])]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RlinfError, match=r"there is no run here \(no config.yaml\)"):
        read_run(tmp_path)


def test_bars_are_cut_to_their_step_and_told_from_its_begin(tmp_path: Path) -> None:
    def event(name: str, begin: float, seconds: float, cat: str = "run", tid: int = 1) -> dict[str, Any]:
        times = {"ts": begin * 1e6, "dur": seconds * 1e6}
        return {"name": name, "cat": cat, "ph": "X", **times, "pid": 0, "tid": tid, "args": {"step": 7}}

    names = [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "device0"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "actor[0]"}},
    ]
    events = [
        event("step", 10.0, 4.0, "driver", 0),
        event("train", 9.0, 2.0),
        event("wait", 12.0, 5.0, "wait"),
        event("save", 14.5, 1.0),
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(names + events))
    (step,) = read_timeline(trace)
    assert (step.step, step.seconds) == (7, 4.0)
    found = [(bar.lane, bar.name, bar.begin, bar.seconds, bar.waits) for bar in step.bars]
    assert found == [
        ("device0 · actor[0]", "train", 0.0, 1.0, False),
        ("device0 · actor[0]", "wait", 2.0, 2.0, True),
    ]


def test_what_is_said_before_the_run_has_a_folder_is_kept_for_it(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "run")
    notes.add("note", "the plan is so, because")
    folder = a_run(tmp_path / "run")
    notes.add("warning", "a group without spread", 3)
    assert read_run(folder).notes == [
        {"step": None, "kind": "note", "text": "the plan is so, because"},
        {"step": 3, "kind": "warning", "text": "a group without spread"},
    ]
