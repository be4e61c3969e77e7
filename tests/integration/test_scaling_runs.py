"""`rlinf train` whose numbers of ranks change: as planned, by a command, and after a resume."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.run.scale_desk import ask, is_open

PLACED = (
    "placement.rollout=0",
    "placement.actor=0",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "eval.every=0",
)
PLANNED = "schedule.scale=[{step: 1, actor: 2}, {step: 3, rollout: 2, actor: 1}]"


def changes(output: Path) -> list[dict[str, Any]]:
    """What was changed, and what was refused."""
    return [json.loads(line) for line in (output / "scale.jsonl").read_text().splitlines()]


def losses(job: Any) -> list[tuple[float, float]]:
    """Of every step."""
    return [(each["train/grad_norm"], each["train/reward"]) for each in job.metrics() if each["step"] > 0]


def test_planned_changes_come_after_their_steps_and_leave_what_comes_out_as_it_is(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    scaled, steady = new_job(*PLACED, "train.steps=4", PLANNED), new_job(*PLACED, "train.steps=4")
    for job in (scaled, steady):
        done = start(job.args(engine="local", ranks=2)).done(400)
        assert done.code == 0, done.err
    assert losses(scaled) == [pytest.approx(each, rel=1e-6) for each in losses(steady)]
    found = changes(scaled.output)
    assert [(each["step"], each["reason"], each["ranks"]) for each in found] == [
        (1, "planned", {"actor": [1, 2]}),
        (3, "planned", {"rollout": [1, 2], "actor": [2, 1]}),
    ]
    told = {each["step"]: each for each in scaled.metrics()}
    assert [step for step, each in told.items() if "scale/pause_s" in each] == [2, 4]
    assert told[2]["scale/moved_bytes"] == found[0]["moved_bytes"] > 0
    assert not is_open(scaled.output)
    check_resumed(scaled, start)


def check_resumed(job: Any, start: Callable[..., Any]) -> None:
    """From the checkpoint between the changes it goes on with two ranks, and makes the second one again."""
    before = losses(job)
    latest = job.output / "checkpoints" / "latest"
    latest.unlink()
    latest.symlink_to("step_2")
    shutil.rmtree(job.output / "export")
    done = start(["train", f"--resume={job.output}"]).done(400)
    assert done.code == 0, done.err
    assert losses(job) == [pytest.approx(each, rel=1e-6) for each in before]
    assert [each["step"] for each in changes(job.output)] == [1, 3]
    assert changes(job.output)[1]["ranks"] == {"rollout": [1, 2], "actor": [2, 1]}


def test_a_run_is_scaled_by_a_command_and_goes_on_after_what_it_refuses(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    job = new_job(
        *PLACED[:2], "train.steps=4000", "checkpoint.every=0", "checkpoint.export=false", "eval.every=0"
    )
    run = start(job.args(engine="local", ranks=2))
    try:
        end = time.monotonic() + 300.0
        while not is_open(job.output) and time.monotonic() < end:
            time.sleep(0.1)
        with pytest.raises(ConfigError, match="actor=3: this run has 2 devices"):
            ask(job.output, {"actor": 3}, 300.0, print)
        answer = ask(job.output, {"actor": 2}, 300.0, print)
        assert (answer["ranks"], answer["moved_bytes"] > 0) == ({"actor": [1, 2]}, True)
        assert ask(job.output, {"actor": 1}, 300.0, print)["ranks"] == {"actor": [2, 1]}
    finally:
        run.process.send_signal(signal.SIGINT)
        done = run.done(400)
    assert "Traceback" not in done.err
    assert [each["ok"] for each in changes(job.output)] == [False, True, True]


def test_a_planned_change_that_cannot_be_is_told_before_anything_starts(job: Any) -> None:
    done = job.train("schedule.scale=[{step: 2, actor: 3}]")
    assert done.code == 2
    assert "schedule.scale: at step 2: actor=3: this run has 1 device" in done.error
    done = job.train("schedule.scale=[{actor: 3}]")
    assert "needs a step and the ranks of a component" in done.error
