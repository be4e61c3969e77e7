"""A run that finds its plan by itself, and one that repeats what the first part of it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.schedule.plan_yaml import plan_from_yaml, read_plan
from rlinf_core.schedule.profile_yaml import read_profile

GIVEN = (
    "train.steps=80",
    "train.prompts_per_step=2",
    "schedule.profile_steps=1",
    "schedule.dynamic=off",
    "checkpoint.every=4",
    "checkpoint.keep=50",
    "eval.every=0",
)


@pytest.mark.slow
def test_a_run_tries_plans_settles_and_repeats_that_bit_for_bit_when_resumed(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    job = new_job(*GIVEN)
    slow = f"--reward={job.folder / 'partial_reward.py'}:slow"  # so that a move takes few steps' time
    done = start(job.args(slow, engine="local", ranks=2)).done()
    assert done.code == 0, done.err
    assert "is the fastest of" in done.out
    output: Path = job.output
    moves = [json.loads(line) for line in (output / "plans.jsonl").read_text().splitlines()]
    assert [move["step"] for move in moves[:2]] == [2, 4]
    modes = [plan_from_yaml(move["plan"]).mode for move in moves]
    assert {"disaggregated", "hybrid"} <= set(modes)
    assert read_plan(output / "plan.yaml").mode == modes[-1]
    measured = read_profile(output / "profile.yaml").measurements
    assert {(one.component, one.devices) for one in measured} >= {
        ("rollout", 1),
        ("rollout", 2),
        ("actor", 1),
        ("actor", 2),
    }
    events = json.loads((output / "trace.json").read_text())
    assert {"step", "move", "generate", "train"} <= {event["name"] for event in events}
    records, weights = job.numbers(), job.weights()
    assert "time/predicted" in job.metrics()[-1]

    latest = output / "checkpoints" / "latest"
    latest.unlink()
    latest.symlink_to("step_4")
    done = start(["train", f"--resume={output}"]).done()
    assert done.code == 0, done.err
    assert "is the fastest of" not in done.out
    assert job.numbers() == records
    assert job.weights() == weights
