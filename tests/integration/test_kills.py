"""Runs that are killed at random moments, again and again, and end with the numbers of one that was not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 20
JOB = (
    f"train.steps={STEPS}",
    "checkpoint.every=3",
    "checkpoint.keep_best=eval/accuracy",
    "eval.every=5",
    "train.mini_batches=2",
)
AT_THE_START = 0.2  # of the kills: while a run composes itself, starts processes, loads and warms up
AHEAD = 6  # steps after the latest checkpoint, at most
AFTER_A_STEP_S = 0.4  # the others come so many seconds, or less, after a step is told


def wait(started: Any, job: Any, chance: random.Random, start_s: float) -> str:
    """Wait for the moment of a kill; tells which it is."""
    if chance.random() < AT_THE_START:
        share = chance.random()
        time.sleep(share * start_s)
        return f"{share:.2f} of the start"
    latest = job.output / "checkpoints" / "latest"
    first = int(latest.readlink().name.removeprefix("step_")) if latest.is_symlink() else 0
    step = chance.randint(min(first + 1, STEPS), min(first + AHEAD, STEPS))
    if step > first:
        started.wait_for_text(f"step {step}/")
    later_s = chance.random() * AFTER_A_STEP_S
    time.sleep(later_s)
    return f"{later_s:.2f} s after step {step}"


def kill(started: Any, *, driver_alone: bool) -> list[int]:
    """Kill a run, all of it or its driver; its processes, or none if it has ended before."""
    family: list[int] = started.family()
    if started.process.poll() is not None:
        return []
    for pid in family[:1] if driver_alone else family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    started.done()
    return family


def killed_until(
    kills: int, mode: str, new_job: Callable[..., Any], start: Callable[..., Any], alive: Callable[..., Any]
) -> list[str]:
    """So many kills of runs of one mode; the moments. Each run is killed five times, then left alone and
    compared with one that was not killed."""
    settings = (*JOB, f"mode={mode}")
    whole = new_job(*settings)
    began = time.monotonic()
    started = start(whole.args(engine="local", ranks=2))
    started.wait_until((whole.output / "metrics.jsonl").exists)
    start_s = time.monotonic() - began
    assert started.done().code == 0
    chance = random.Random(mode)
    moments: list[str] = []
    while len(moments) < kills:
        job, family = new_job(*settings), []
        for _ in range(min(5, kills - len(moments))):
            started = start(command_of(job))
            moments.append(wait(started, job, chance, start_s))
            family += kill(started, driver_alone=chance.random() < 0.5)
        done = start(command_of(job)).done()
        assert done.code == 0, done.err
        assert job.numbers() == whole.numbers(), moments
        assert job.weights() == whole.weights(), moments
        kept = sorted(path.name for path in (job.output / "checkpoints").iterdir())
        assert kept == sorted(path.name for path in (whole.output / "checkpoints").iterdir())
        assert not alive(family)
    return moments


def command_of(job: Any) -> list[str]:
    """What starts a run, or goes on with it."""
    if (job.output / "config.yaml").exists():
        return ["train", f"--resume={job.output}"]
    command: list[str] = job.args(engine="local", ranks=2)
    return command


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
    print(f"{mode}: killed {', '.join(moments)}")
