"""What a person sees of a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
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
