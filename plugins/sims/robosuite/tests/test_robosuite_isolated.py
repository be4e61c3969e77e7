"""The robosuite simulator in its own environment, built from its lock."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_core.isolation import build, child_environment
from rlinf_core.plugins import plugins
from rlinf_core.testing import parametrize_with_checks

INSIDE = Path(__file__).parent / "inside/checks.py"
pytestmark = pytest.mark.slow


def _names() -> list[str]:
    tree = ast.parse(INSIDE.read_text())
    listed = next(node.value for node in tree.body if isinstance(node, ast.Assign) and _is_list(node))
    assert isinstance(listed, ast.List)
    return [node.id for node in listed.elts if isinstance(node, ast.Name)]


def _is_list(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "CHECKS"


@pytest.fixture(scope="module", autouse=True)
def python() -> Path:
    """The interpreter of robosuite's environment, which is built if it is not there."""
    return build(plugins().get("simulators", "robosuite")).python


@pytest.fixture(scope="module")
def found(python: Path) -> dict[str, str | None]:
    """What each check said that ran with robosuite at hand."""
    done = subprocess.run(
        [str(python), str(INSIDE)],
        env=child_environment(plugins().get("simulators", "robosuite")),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    assert done.returncode == 0, done.stderr[-4000:]
    return {line["check"]: line["failed"] for line in lines}


@pytest.mark.parametrize("name", _names())
def test_with_robosuite_at_hand(name: str, found: dict[str, str | None]) -> None:
    assert found[name] is None, found[name]


@parametrize_with_checks(
    "simulators", "robosuite", {"cameras": ("agentview",), "image_size": 32}, isolated=True
)
def test_states_and_pictures_conform(check: Callable[[], None]) -> None:
    check()


def test_ppo_trains_for_two_hundred_steps(python: Path, tmp_path: Path) -> None:
    settings = (
        *("simulator.task=Lift", "simulator.max_episode_steps=5", "optimizer.lr=1e-3"),
        *("train.steps=200", "train.prompts_per_step=4", "eval.samples=4", "eval.every=0"),
    )
    command = [Path(sys.executable).parent / "rlinf", "train", "--output", tmp_path / "run"]
    chosen = ["--simulator", "robosuite", "--model", "mlp_policy", "--algo", "ppo", *settings]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "train/policy_loss" in row]
    assert len(steps) == 200
    for row in steps:
        assert math.isfinite(row["train/policy_loss"])
        assert row["train/grad_norm"] > 0
        assert row["train/samples"] == 4
        assert row["train/response_length"] == 5
        assert row["train/logprob_mismatch_max"] < 1e-4
        assert -5.0 <= row["train/reward"] < -4.5  # five steps, each of which costs a little less than 1
    assert sum(row.get("env/lost_episodes", 0) for row in rows) == 0
