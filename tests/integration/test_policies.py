"""An agent of two policies, each with an update of its own: run, resumed, exported, and learning."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = '''
"""The run's own policy writes a product, and the speaker says its value."""
import json
import urllib.request

def ask(episode, model, messages):
    body = json.dumps({"model": model, "messages": messages}).encode()
    call = urllib.request.Request(episode.base_url + "/chat/completions", body)
    call.add_header("Authorization", f"Bearer {episode.api_key}")
    with urllib.request.urlopen(call) as answer:
        return json.loads(answer.read())["choices"][0]["message"]

def pair(episode):
    messages = [{"role": "user", "content": episode.prompt}]
    said = ask(episode, "policy", messages)
    left, _, right = said["content"].strip("()").partition("*")
    if not (left.isdigit() and right.isdigit()):
        return {"policy": 0.0}
    value = str(int(left) * int(right))
    told = ask(episode, "speaker", [*messages, said, {"role": "user", "content": f">{value},"}])["content"]
    return {"policy": float(value == episode.answer), "speaker": float(told == value)}
'''
QUICK = (
    *("warm_start.steps=60", "warm_start.batch_size=64", "train.samples_per_step=64", "eval.samples=16"),
    *("trackers=[]", "policies.speaker.optimizer.lr=3e-4", "policies.speaker.algo.kl_coef=0.01"),
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, ...]:
    """Settings of the agent, with demonstrations of which half add, and half say a number backwards."""
    (tmp_path / "pair.py").write_text(PROGRAM)
    rows, draw = [], random.Random(0)
    for _ in range(4000):
        left, right = draw.randrange(100), draw.randrange(100)
        sign = draw.choice("*+")
        value = str(left * right if sign == "*" else left + right)
        turns = [
            {"role": "assistant", "content": f"({left}{sign}{right})"},
            {"role": "user", "content": f">{value},"},
            {"role": "assistant", "content": value[:: draw.choice((1, -1))]},
        ]
        rows.append({"prompt": f"{left}*{right}=", "answer": str(left * right), "demonstration": turns})
    (tmp_path / "pair.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ("--data", str(tmp_path / "pair.jsonl"), "data.demonstration_key=demonstration")
    program = f"agent.program={tmp_path / 'pair.py'}:pair"
    return ("train", "--recipe", "calculator", *data, "--reward", "returned", "tools=[]", program)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def exported(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    folders = {"policy": run / "export", "speaker": run / "export" / "policies" / "speaker"}
    return {name: load_file(folder / "model.safetensors") for name, folder in folders.items()}


@pytest.mark.parametrize(
    "more",
    [("ranks=2", "mode=collocated"), ("ranks=2", "mode=disaggregated", "train.max_staleness=1")],
    ids=["collocated", "disaggregated"],
)
def test_rows_of_both_are_what_their_policies_drew(
    command: Callable[..., Any], tmp_path: Path, pair: tuple[str, ...], more: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    done = command(*pair, *QUICK, *more, "train.steps=3", "agent.concurrency=32", "--output", str(run))
    assert done.code == 0, done.err
    steps = metrics(run)[1:]
    assert len(steps) == 3
    for step in steps:
        assert 0 < step["train/speaker/samples"] <= step["train/samples"] == 64
        assert step["train/unscored"] == step["train/speaker/unscored"] == 0
        assert {"train/speaker/reward_returned", "train/speaker/lr", "train/speaker/kl"} <= set(step)
        if not step.get("train/staleness_max"):  # rows of the weights that train
            assert step["train/logprob_mismatch_max"] < 1e-4 > step["train/speaker/logprob_mismatch_max"]
    assert any(step.get("train/staleness_max") for step in steps) == ("train.max_staleness=1" in more)
    own, other = exported(run).values()
    assert set(own) == set(other)
    assert any(not torch.equal(own[name], other[name]) for name in own)


def test_a_resumed_run_goes_on_with_both_bit_for_bit(
    command: Callable[..., Any], tmp_path: Path, pair: tuple[str, ...]
) -> None:
    quick = (*QUICK, "engine=inline", "ranks=1", "agent.concurrency=1", "train.samples_per_step=32")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert command(*pair, *quick, "train.steps=4", "--output", str(whole)).code == 0
    assert command(*pair, *quick, "train.steps=4", "checkpoint.every=2", "--output", str(parts)).code == 0
    shutil.rmtree(parts / "checkpoints" / "step_4")
    (parts / "checkpoints" / "latest").unlink()
    (parts / "checkpoints" / "latest").symlink_to("step_2")
    assert command("train", "--resume", str(parts)).code == 0
    assert command("export", str(parts), "--output", str(tmp_path / "again" / "export")).code == 0
    one, other = exported(whole), exported(tmp_path / "again")
    for name in ("policy", "speaker"):
        assert all(torch.equal(one[name][weight], other[name][weight]) for weight in one[name])


@pytest.mark.slow
@pytest.mark.nightly
def test_both_learn(command: Callable[..., Any], tmp_path: Path, pair: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    done = command(
        *(*pair, "train.steps=30", "train.samples_per_step=256", "agent.concurrency=64"),
        *("policies.speaker={}", "--output", str(run)),
    )
    assert done.code == 0, done.err
    held_out = [step for step in metrics(run) if "eval/reward" in step]
    for name in ("eval/reward", "eval/speaker/reward"):
        before, after = held_out[0][name], held_out[-1][name]
        assert before < 0.65, name
        assert after > max(0.75, before + 0.2), name  # which calls meet in the engine, no seed fixes
