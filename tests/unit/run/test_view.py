"""What a person sees of a run."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import Component
from rlinf_core.flows.flow import StepResult
from rlinf_core.run.view import View


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def view(shown: io.StringIO) -> View:
    config = compose(Options(algo="grpo", backend="fsdp", output="runs/[x]", overrides=("train.steps=200",)))
    return View(config, Console(file=shown, width=80, highlight=False))


def test_a_warning_is_said_once_whatever_its_numbers(view: View, shown: io.StringIO) -> None:
    for step, share in ((1, "53%"), (2, "59.5%")):
        view.warn(f"{share} of the responses were cut", step)
    view.warn("something else")
    assert shown.getvalue() == "warning: step 1: 53% of the responses were cut\nwarning: something else\n"


def test_a_log_file_gets_fifty_lines_of_a_run_and_no_control_characters(
    view: View, shown: io.StringIO
) -> None:
    with view:
        for step in range(1, 201):
            view.step(step, StepResult([], {"train/reward": 0.25}))
        view.stopped(resumable=True)
    lines = shown.getvalue().splitlines()
    assert sum(line.startswith("step ") for line in lines) == 50
    assert "step 4/200  reward 0.250" in lines
    assert lines[-1].endswith("rlinf train --resume runs/[x]")
    assert "\x1b" not in shown.getvalue()


@pytest.mark.parametrize(
    ("simulator", "metrics", "told"),
    [
        (None, {"eval/accuracy": 0.25, "eval/reward": 3.0}, "held-out accuracy 25.0% on 2 problems"),
        ("gym", {"eval/success": 0.5, "eval/reward": 3.0}, "held-out success 50.0% on 2 episodes"),
        ("gym", {"eval/reward": 195.25}, "held-out reward 195.2 on 2 episodes"),  # no share of anything
    ],
)
def test_a_score_is_told_as_what_it_is(
    simulator: str | None, metrics: dict[str, float], told: str, shown: io.StringIO
) -> None:
    component = None if simulator is None else Component("simulators", simulator, None)
    config = compose(Options(algo="grpo", backend="fsdp", overrides=("train.steps=200",)))
    rows: list[Any] = [SimpleNamespace(), SimpleNamespace()]
    console = Console(file=shown, width=120, highlight=False)
    with View(replace(config, simulator=component), console) as view:
        view.eval(0, metrics, rows)
        view.eval(5, metrics, rows)
    assert f"step 0: {told}\n" in shown.getvalue()
    before = told.split(" on ")[0].split()[-1]
    assert f"step 5: {told}  (before training {before})\n" in shown.getvalue()


def test_a_policy_that_acts_is_told_of_in_actions(view: View, shown: io.StringIO) -> None:
    with view:
        view.step(200, StepResult([], {"util/tokens_per_s": 5000.0, "util/env_steps_per_s": 1234.4}))
    assert "actions/s 1,234" in shown.getvalue()
    assert "tokens" not in shown.getvalue()
