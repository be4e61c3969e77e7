"""Responses that call a calculator, in every mode and in parts, and outside agents; until these learn."""

from __future__ import annotations

import json
import random
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


AGENT = """
import json
import urllib.request

def ask(episode, messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    call = urllib.request.Request(episode.base_url + "/chat/completions", body)
    call.add_header("Authorization", f"Bearer {episode.api_key}")
    with urllib.request.urlopen(call) as answer:
        return json.loads(answer.read())["choices"][0]["message"]

def two_steps(episode):
    messages = [{"role": "user", "content": episode.prompt}]
    said = ask(episode, messages)
    left, _, right = said["content"].strip("()").partition("*")
    if not (left.isdigit() and right.isdigit()):
        return 0.0
    messages += [said, {"role": "user", "content": f">{int(left) * int(right)},"}]
    return float(ask(episode, messages)["content"] == episode.answer)
"""


@pytest.fixture
def agent(tmp_path: Path) -> tuple[str, ...]:
    """Settings of an agent that has two turns, with demonstrations of which half add."""
    (tmp_path / "two.py").write_text(AGENT)
    rows, draw = [], random.Random(0)
    for _ in range(4000):
        left, right = draw.randrange(100), draw.randrange(100)
        sign = draw.choice("*+")
        result = str(left * right if sign == "*" else left + right)
        turns = [
            {"role": "assistant", "content": f"({left}{sign}{right})"},
            {"role": "user", "content": f">{result},"},
            {"role": "assistant", "content": result},
        ]
        rows.append({"prompt": f"{left}*{right}=", "answer": str(left * right), "demonstration": turns})
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ("--data", str(tmp_path / "two.jsonl"), "data.demonstration_key=demonstration")
    return (*data, "--reward", "returned", "tools=[]", f"agent.program={tmp_path / 'two.py'}:two_steps")


@pytest.mark.parametrize("more", [("engine=inline", "ranks=1"), ("ranks=2", "mode=disaggregated")])
def test_an_outside_agent_is_trained(
    command: Callable[..., Any], tmp_path: Path, agent: tuple[str, ...], more: tuple[str, ...]
) -> None:
    quick = [setting for setting in QUICK if not setting.startswith("data.")]
    given = ("train", "--recipe", "calculator", "--output", str(tmp_path / "run"), *agent, *quick, *more)
    done = command(*given, "agent.concurrency=32")
    assert done.code == 0, done.err
    samples, steps = lines(tmp_path / "run" / "samples.jsonl"), lines(tmp_path / "run" / "metrics.jsonl")
    two = [sample for sample in samples if TURN.search(sample["response"])]
    assert len(two) > 10
    for sample in two:
        ((expression, result),) = TURN.findall(sample["response"])
        assert result == answered(expression)
        assert sample["length"] == len(sample["tokens"]) - len(f">{result},")
        assert sample["reward"] == (sample["response"].rpartition(",")[2] == sample["answer"])
    assert all(step.get("train/logprob_mismatch", 0.0) < 1e-6 for step in steps)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_outside_agent_learns(command: Callable[..., Any], tmp_path: Path, agent: tuple[str, ...]) -> None:
    given = ("train", "--recipe", "calculator", "--output", str(tmp_path / "run"), *agent)
    done = command(*given, "train.steps=30", "train.samples_per_step=256", "agent.concurrency=64")
    assert done.code == 0, done.err
    accuracy = [
        step["eval/accuracy"] for step in lines(tmp_path / "run" / "metrics.jsonl") if "eval/accuracy" in step
    ]
    assert accuracy[0] < 0.65
    assert accuracy[-1] > max(0.75, accuracy[0] + 0.2)  # which calls meet in the engine, no seed fixes
