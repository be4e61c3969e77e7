"""Whole runs of tiny vision-language models on a drawn task, and the commands of their page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.errors import ModelError

PAGE = Path(__file__).parents[4] / "docs" / "models-hf-vlm.md"
SMALL = (
    "--engine inline --ranks 1 --data spatial_relations 'reward={name: length, free: 0, limit: 8}' "
    "--model hf_vlm trackers=[] train.steps=2 train.prompts_per_step=4 sampling.max_new_tokens=4 "
    "eval.samples=4 eval.every=0"
)


def train(output: Path, words: str) -> list[dict[str, Any]]:
    """The metrics of a run's steps. Any: numbers."""
    done = CliRunner().invoke(app, ["train", "--output", str(output), *shlex.split(f"{SMALL} {words}")])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "train/reward" in record]


@pytest.mark.parametrize(
    "words",
    [
        "--algo grpo model.preset=tiny-qwen2_5_vl",
        "--algo ppo model.preset=tiny-smolvlm train.mini_batches=2",
        "--algo dapo model.preset=tiny-paligemma algo.max_rounds=1",
        "--algo reinforce_pp model.preset=tiny-qwen3_vl lora.rank=4",
    ],
)
def test_every_algorithm_updates_a_policy_whose_rollout_agrees_with_the_trainer(
    tmp_path: Path, words: str
) -> None:
    steps = train(tmp_path / "run", f"{words} warm_start.steps=1 warm_start.batch_size=4")
    assert len(steps) == 2
    for step in steps:
        assert step["train/logprob_mismatch_max"] < 1e-5
        assert step["train/grad_norm"] > 0.0
    assert (tmp_path / "run" / "export" / "processor_config.json").exists()


def test_a_model_for_text_refuses_data_with_pictures(tmp_path: Path) -> None:
    words = SMALL.replace("hf_vlm", "hf_lm") + " model.preset=tiny-llama"
    done = CliRunner().invoke(app, ["train", "--output", str(tmp_path / "run"), *shlex.split(words)])
    assert isinstance(done.exception, ModelError)
    assert "the data have images, but the model reads text alone" in str(done.exception)


def test_the_command_and_the_settings_of_the_page_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL):
        Path(name).write_text(text)
    (command,) = re.findall(r"```bash\nrlinf train (.*)\n```", page)
    for words in (command, "-c scenes.yaml"):
        shown = CliRunner().invoke(app, ["config", "show", *shlex.split(words)])
        assert shown.exit_code == 0, shown.output
        assert "hf_vlm" in shown.output


@pytest.mark.slow
def test_the_recipe_learns_to_count(tmp_path: Path) -> None:
    """A third of the recipe: enough to see that reward teaches what half-wrong demonstrations did not."""
    words = "train --recipe counting-blocks train.steps=40 eval.every=0 eval.samples=300 trackers=[]"
    done = CliRunner().invoke(app, [*shlex.split(words), "--output", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = [record["eval/accuracy"] for record in map(json.loads, lines) if "eval/accuracy" in record]
    assert found[0] < 0.5
    assert found[-1] > 0.7
