"""Runs with several trackers at once, resumed ones, and ones whose tracker does not work."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tracked(new_job: Callable[..., Any]) -> Any:
    """A run of three steps, resumed for a fourth."""
    job = new_job("trackers=[csv, tensorboard, wandb, swanlab]", "checkpoint.export=false")
    assert job.train().code == 0
    job.done = job.resume("train.steps=4")
    assert job.done.code == 0, job.done.err
    return job


def test_several_trackers_are_told_the_same(tracked: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = [(record["step"], record["train/reward"]) for record in tracked.metrics()[1:]]
    with (tracked.output / "metrics.csv").open(newline="") as file:
        rows = [(int(row["step"]), row["train/reward"]) for row in csv.DictReader(file)]
    assert [(step, pytest.approx(float(value))) for step, value in rows if value] == expected
    events = EventAccumulator(str(tracked.output / "tensorboard"))
    events.Reload()
    told = [(event.step, event.value) for event in events.Scalars("train/reward")]
    assert told == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert not [line for line in tracked.done.out.splitlines() if "is off for the rest of the run" in line]


@pytest.mark.parametrize("starts", ["wandb/offline-run-*/*.wandb", "swanlab/run-*/*.swanlab"])
def test_a_resumed_run_is_told_under_the_id_it_had(tracked: Any, starts: str) -> None:
    kept = (tracked.output / starts.partition("/")[0] / "rlinf-run-id").read_text()
    assert [file.stem for file in tracked.output.glob(starts)] == [f"run-{kept}"] * 2


def test_a_service_that_cannot_be_reached_does_not_stop_a_run(
    new_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    job = new_job("trackers=[csv, {name: wandb, mode: online}]", "checkpoint.export=false", "train.steps=1")
    done = job.train()
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "is off for the rest of the run" in line]
    assert "'wandb'" in line
    assert "API key" in line
    assert len((job.output / "metrics.csv").read_text().splitlines()) == 3  # names, the evaluation, the step
