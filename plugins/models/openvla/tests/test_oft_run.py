"""Whole runs of a small OpenVLA-OFT in a simulator that shows a picture and gives an instruction."""

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

SIZES = ("model.sizes.image_size=56", "model.sizes.patch_size=14", "model.chunk=2")


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("grpo", ("algo.logprob_level=token", "train.mini_batches=2")),
        ("ppo", ("train.update_epochs=2",)),
        ("ppo", ("model.head=continuous", "lora.rank=4")),
    ],
)
def test_steps_of_every_kind_update_the_policy_that_acts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str, words: tuple[str, ...]
) -> None:
    output = tmp_path / "run"
    steps = train(monkeypatch, output, "openvla_oft", algo, "train.steps=2", *SIZES, *words)
    assert len(steps) == 2
    for step in steps:
        assert step["train/grad_norm"] > 0.0
        assert step["train/logprob_mismatch_max"] < 1e-4
        assert np.isfinite(step["train/reward"])
    assert (output / "export" / "model.safetensors").exists()
    heads = list((output / "export").glob("action_head--*_checkpoint.pt"))
    assert len(heads) == ("model.head=continuous" in words)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "lr", "reward"), [("tokens", 3e-3, 0.4), ("continuous", 1e-3, 1.2)])
def test_a_random_policy_learns_within_thirty_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, head: str, lr: float, reward: float
) -> None:
    words = ("train.steps=30", "train.prompts_per_step=16", "algo.group_size=8", "algo.logprob_level=token")
    words += (f"optimizer.lr={lr}", f"model.head={head}", "model.noise=0.3", *SIZES)
    steps = train(monkeypatch, tmp_path / "run", "openvla_oft", "grpo", *words)
    assert abs(steps[0]["train/reward"]) < 0.5  # of 2 at most; picture or instruction alone give up to 1
    assert np.mean([step["train/reward"] for step in steps[-6:]]) > reward


def test_the_command_of_the_page_is_accepted() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models-openvla-oft.md").read_text()
    (command,) = re.findall(r"```bash\nrlinf train (.*)\n```", page)
    shown = CliRunner().invoke(app, ["config", "show", *shlex.split(command)])
    assert shown.exit_code == 0, shown.output
    assert "reach the ball" in shown.output
