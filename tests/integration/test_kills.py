"""Runs that are killed at random moments, again and again, and end with the numbers of one that was not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

JOB = (
    "train.steps=20",
    "checkpoint.every=3",
    "checkpoint.keep_best=eval/accuracy",
    "eval.every=5",
    "train.mini_batches=2",
)


def killed_after(started: Any, seconds: float, *, driver_alone: bool) -> list[int]:
    """Kill what was started, all at once or its driver alone; its processes, or none if it had ended."""
    try:
        started.process.wait(seconds)
        return []
    except subprocess.TimeoutExpired:
        family: list[int] = started.family()
        for pid in family[:1] if driver_alone else family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.done()
        return family


def killed_until(
    kills: int, mode: str, new_job: Callable[..., Any], start: Callable[..., Any], alive: Callable[..., Any]
) -> list[float]:
    """So many kills of runs of one mode, at shares of the time of a run that is left alone; the shares. Each
    run is killed until its luck lasts to its end."""
    settings = (*JOB, f"mode={mode}")
    whole = new_job(*settings)
    began = time.monotonic()
    done = start(whole.args(engine="local", ranks=2)).done(300)
    assert done.code == 0, done.err
    seconds = time.monotonic() - began
    chance = random.Random(mode)
    moments: list[float] = []
    family: list[int]
    while len(moments) < kills:
        job = new_job(*settings)
        command, family = job.args(engine="local", ranks=2), []
        while True:
            started = start(command)
            share, alone = chance.random(), chance.random() < 0.5
            left = len(moments) < kills
            killed = killed_after(started, share * seconds, driver_alone=alone) if left else []
            if not killed:
                break
            family += killed
            moments.append(share)
            if (job.output / "config.yaml").exists():
                command = ["train", f"--resume={job.output}"]
        done = started.done(300)
        assert done.code == 0, done.err
        assert job.numbers() == whole.numbers(), moments
        assert job.weights() == whole.weights(), moments
        kept = sorted(path.name for path in (job.output / "checkpoints").iterdir())
        assert kept == sorted(path.name for path in (whole.output / "checkpoints").iterdir())
        assert not alive(family)
    return moments


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_as_one_that_was_not(
    new_job: Callable[..., Any], start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    killed_until(2, "disaggregated", new_job, start, alive)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["collocated", "disaggregated", "hybrid"])
def test_thirty_kills_at_random_moments_change_no_bit(
    mode: str, new_job: Callable[..., Any], start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    moments = killed_until(30, mode, new_job, start, alive)
    assert len(moments) == 30
    print(f"{mode}: killed at", " ".join(f"{share:.2f}" for share in sorted(moments)))
