"""Policies imitate recorded episodes before they are reinforced: whole runs, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from rlinf_core.cli.app import app

REACH = ("--simulator", "metaworld", "simulator.task=reach-v3", "simulator.max_episode_steps=100")
TABLE = ("--simulator", "tabletop", "simulator.image_size=32")
QUICK = ("trackers=[]", "eval.samples=2", "eval.temperature=0", "checkpoint.every=0")
SMALL = ("model.preset=tiny", "train.micro_batch_tokens=16")


def rlinf(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "export" / "model.safetensors")


def apart(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The share of numbers that differ by more than rounding; it decides the direction of some of the first
    steps, where a gradient is nearly 0."""
    moved = [(theirs[name] - value).abs() > 1e-4 for name, value in ours.items()]
    return sum(int(each.sum()) for each in moved) / sum(each.numel() for each in moved)


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "reach"
    rlinf("demos", "record", *REACH, "--episodes", "30", "--noise", "0.2", "--output", str(folder))
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "table"
    rlinf("demos", "record", *TABLE, "--episodes", "4", "--output", str(folder))
    return folder


def imitation(run: Path, demos: Path, steps: int, *more: str) -> Path:
    warm = (f"warm_start.demonstrations={demos}", f"warm_start.steps={steps}")
    rlinf("train", "--algo=grpo", f"--output={run}", *warm, *QUICK, *more)
    return run


def test_a_perceptron_that_imitates_an_expert_reaches(reach: Path, tmp_path: Path) -> None:
    told = (*REACH, "--model=mlp_policy", "--engine=inline", "--ranks=1", "train.steps=0")
    more = ("model.hidden=[128,128]", "warm_start.batch_size=128", "eval.samples=20")
    run = imitation(tmp_path / "run", reach, 400, *told, *more)
    (only,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert only["eval/success"] >= 0.75


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_one_and_go_on_with_reinforcement(reach: Path, tmp_path: Path) -> None:
    told = (*REACH, "--model=mlp_policy", "warm_start.batch_size=7", "train.prompts_per_step=1")
    one, two = (
        imitation(tmp_path / str(ranks), reach, 5, *told, f"--ranks={ranks}", "train.steps=1")
        for ranks in (1, 2)
    )
    assert apart(weights(one), weights(two)) < 0.02
    lines = (two / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["openvla", "openvla_oft"])
def test_a_token_policy_imitates_on_two_ranks(model: str, table: Path, tmp_path: Path) -> None:
    told = (*TABLE, f"--model={model}", *SMALL, "train.steps=0", "warm_start.batch_size=6")
    one, three, other = (
        imitation(tmp_path / f"{steps}-{ranks}", table, steps, *told, f"--ranks={ranks}")
        for steps, ranks in ((1, 1), (3, 1), (3, 2))
    )
    assert apart(weights(three), weights(one)) > 0.5
    assert apart(weights(three), weights(other)) < 0.05


@pytest.mark.slow
def test_imitation_may_be_the_whole_run(table: Path, tmp_path: Path) -> None:
    """The steps of a warm start with the same optimizer, counted as the run's own."""
    told = (*TABLE, "--model=openvla_oft", *SMALL, "--engine=inline", "--ranks=1", *QUICK)
    plain = ("optimizer.lr=1e-3", "optimizer.schedule=constant", "train.prompts_per_step=16")
    warm = f"warm_start.demonstrations={table}"
    rlinf("sft", f"--output={tmp_path / 'whole'}", warm, "train.steps=3", *told, *plain)
    same = (warm, "warm_start.steps=3", "warm_start.batch_size=16", "warm_start.lr=1e-3", "train.steps=0")
    rlinf("train", "--algo=grpo", f"--output={tmp_path / 'warm'}", *same, *told, *plain)
    ours, theirs = weights(tmp_path / "whole"), weights(tmp_path / "warm")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    records = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert records[3]["train/imitation_loss"] < records[1]["train/imitation_loss"]
