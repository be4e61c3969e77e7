"""Recipes with the settings of published runs: each is short, is accepted as it is, and says what was
published; each of its small siblings trains by the same algorithm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "recipes"
PUBLISHED = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SMALL = sorted(path.stem for path in (FOLDER / "cpu").glob("*.yaml"))
SIBLINGS = {
    "math-1.5b-grpo": "math-grpo",
    "math-7b-grpo": "math-grpo",
    "maniskill-25-openvla-oft-ppo": "openvla-oft-ppo",
    "maniskill-25-openvla-oft-grpo": "openvla-oft-grpo",
    "maniskill-25-openvla-grpo": "openvla-grpo",
    "libero-10-openvla-oft-grpo": "openvla-oft-grpo",
    "libero-spatial-pi0-ppo": "pi0-ppo",
}
SAID = {  # in RLinf's own configuration files: learning rate, rows a step, optimizer steps
    "math-1.5b-grpo": (2e-5, 8192, 4),
    "math-7b-grpo": (2e-5, 2048, 4),
    "maniskill-25-openvla-oft-ppo": (1e-4, 128, 2),
    "maniskill-25-openvla-oft-grpo": (1e-4, 256, 4),
    "maniskill-25-openvla-grpo": (1e-5, 128, 16),
    "libero-10-openvla-oft-grpo": (2e-5, 1024, 4),
    "libero-spatial-pi0-ppo": (5e-6, 512, 64),
}
OF_THE_ALGORITHM = {"filter_low", "filter_high"}  # the groups that a small model gives would all be left out


def settings(path: Path) -> dict[str, Any]:
    return dump(compose(Options(config=(path,))))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_is_short_and_says_what_was_published(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 15
    found = settings(path)
    train = found["train"]
    rows = train["prompts_per_step"] * found["algo"]["group_size"]
    steps = train["mini_batches"] * train["update_epochs"]
    assert (found["optimizer"]["lr"], rows, steps) == SAID[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_sibling_has_the_same_algorithm(name: str) -> None:
    large, small = settings(FOLDER / f"{name}.yaml"), settings(FOLDER / "cpu" / f"{SIBLINGS[name]}.yaml")
    differ = {key for key in large["algo"] if large["algo"][key] != small["algo"][key]}
    assert differ <= OF_THE_ALGORITHM | ({"group_size"} if name.startswith("math") else set())
    assert large["model"]["name"] == small["model"]["name"]
    assert large["optimizer"]["betas"] == small["optimizer"]["betas"]
    assert name in (FOLDER / "cpu" / f"{SIBLINGS[name]}.yaml").read_text()[:200] or name == "math-7b-grpo"


def test_every_recipe_has_a_sibling_and_a_row_in_its_page() -> None:
    assert set(SIBLINGS) == set(PUBLISHED) == set(SAID)
    assert set(SIBLINGS.values()) == set(SMALL)
    page = (ROOT / "docs/recipes.md").read_text()
    assert [name for name in (*PUBLISHED, *SMALL) if f"{name}.yaml" not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_trains(name: str, tmp_path: Path) -> None:
    command = "from rlinf_core.cli.app import run; run()"
    short = ("train.steps=2", "eval.samples=4", "warm_start.steps=0", "ranks=2")
    words = ["train", f"--config={FOLDER / 'cpu' / name}.yaml", f"--output={tmp_path / 'run'}", *short]
    done = subprocess.run(
        [sys.executable, "-c", command, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
