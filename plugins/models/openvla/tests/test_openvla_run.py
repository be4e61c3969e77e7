"""Whole runs of a tiny OpenVLA in a simulator that shows a picture and gives an instruction."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rlinf_core.cli.app import app

sys.path.insert(0, str(Path(__file__).parent))
from lamps import train


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("grpo", ()),
        ("grpo", ("algo.logprob_level=token", "train.mini_batches=2")),
        ("ppo", ()),
        ("ppo", ("model.chunk=2", "train.update_epochs=2")),
        ("ppo", ("algo.critic=own",)),
        ("grpo", ("lora.rank=4",)),
        ("ppo", ("lora.rank=4",)),
    ],
)
def test_steps_of_every_kind_update_the_policy_that_acts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str, words: tuple[str, ...]
) -> None:
    steps = train(monkeypatch, tmp_path / "run", "openvla", algo, "train.steps=2", *words)
    assert len(steps) == 2
    for step in steps:
        assert step["train/grad_norm"] > 0.0
        assert step["train/logprob_mismatch_max"] < 1e-4
        assert np.isfinite(step["train/reward"])
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()
    assert (tmp_path / "run" / "export" / "tokenizer.json").exists()


@pytest.mark.slow
def test_a_random_policy_learns_within_thirty_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("train.steps=30", "train.prompts_per_step=16", "algo.group_size=8", "algo.logprob_level=token")
    steps = train(monkeypatch, tmp_path / "run", "openvla", "grpo", *words, "optimizer.lr=3e-3")
    assert abs(steps[0]["train/reward"]) < 0.3  # of 2 at most; picture or instruction alone give up to 1
    assert np.mean([step["train/reward"] for step in steps[-6:]]) > 0.5


def test_the_command_of_the_page_is_accepted() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models-openvla.md").read_text()
    (command,) = re.findall(r"```bash\nrlinf train (.*)\n```", page)
    shown = CliRunner().invoke(app, ["config", "show", *shlex.split(command)])
    assert shown.exit_code == 0, shown.output
    assert "reach the ball" in shown.output
