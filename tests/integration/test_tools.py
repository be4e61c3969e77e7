"""Responses that call a calculator: in every mode, in parts, and until the task is learned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUICK = (
    *("warm_start.steps=120", "warm_start.batch_size=64", "train.steps=3", "train.samples_per_step=64"),
    *("eval.every=3", "eval.samples=16", "trackers=[]", "data.digits=1", "checkpoint.export=false"),
)
TURN = re.compile(r"\(([^)]*)\)>([^,]*),")


@pytest.fixture
def run(command: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Trains the recipe for a moment; returns the run's folder."""

    def begin(name: str, *more: str) -> Path:
        output = tmp_path / name
        done = command("train", "--recipe", "calculator", "--output", str(output), *QUICK, *more)
        assert done.code == 0, done.err
        return output

    return begin


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answered(expression: str) -> str:
    """What a calculator says, by Python's own arithmetic; where it says why not, nothing."""
    if not re.fullmatch(r"[0-9]+([*+-][0-9]+)*", expression) or re.search(r"(?<!\d)0\d", expression):
        return ""
    return str(eval(expression))


def check(output: Path) -> None:
    """Calls were made, their results are true, and rollout and trainer agree about the model's own tokens."""
    samples, steps = lines(output / "samples.jsonl"), lines(output / "metrics.jsonl")
    calls = [turn for sample in samples for turn in TURN.findall(sample["response"])]
    assert sum(bool(answered(expression)) for expression, _ in calls) > 20
    for expression, result in calls:
        assert result == answered(expression) or not answered(expression)
    for sample in samples:
        mine = "".join(sample["tokens"]).replace("∎", "")
        assert mine == sample["response"]
        heard = sum(len(f">{result},") for _, result in TURN.findall(sample["response"]))
        assert sample["length"] == len(sample["tokens"]) - heard
    trained = [step for step in steps if "train/tool_calls" in step]
    assert [step["train/tool_calls"] > 0.3 for step in trained] == [True] * 3
    assert all(step["train/tool_errors"] < 0.5 for step in trained)
    assert all(step.get("train/logprob_mismatch", 0.0) < 1e-6 for step in trained)


@pytest.mark.parametrize(
    "more",
    [
        ("engine=inline", "ranks=1"),
        ("ranks=2", "mode=disaggregated"),
        ("ranks=2", "mode=collocated", "agent.overlap=true"),
    ],
    ids=["inline", "disaggregated", "overlapping"],
)
def test_results_are_true_and_not_the_models(run: Callable[..., Path], more: tuple[str, ...]) -> None:
    check(run("run", *more))


def test_responses_in_parts_call_as_well(run: Callable[..., Path]) -> None:
    staleness = ("train.max_staleness=2", "train.partial_rollouts=true", "rollout={name: hf, max_running: 8}")
    output = run("run", "ranks=2", "mode=disaggregated", *staleness, "train.steps=4")
    calls = [turn for sample in lines(output / "samples.jsonl") for turn in TURN.findall(sample["response"])]
    assert sum(result == answered(expression) for expression, result in calls) > 20
    assert all(result == answered(expression) or not answered(expression) for expression, result in calls)
    assert lines(output / "metrics.jsonl")[-1]["train/staleness_max"] == 2


def test_a_tool_that_is_there_twice_is_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    given = ("train", "--recipe", "calculator", "--output", str(tmp_path / "run"))
    done = command(*given, "tools=[calculator, calculator]", "agent.format=json", "engine=inline")
    assert done.code == 2
    assert "tools.1: there is a tool 'calculator' already; leave one out" in done.err


@pytest.mark.slow
def test_multiplying_with_a_calculator_is_learned(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("train", "--recipe", "calculator", "--output", str(tmp_path / "run"))
    assert done.code == 0, done.err
    held_out = [
        step["eval/accuracy"] for step in lines(tmp_path / "run" / "metrics.jsonl") if "eval/accuracy" in step
    ]
    assert held_out[0] < 0.65
    assert held_out[-1] > 0.95
