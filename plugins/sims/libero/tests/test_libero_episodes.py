"""Episodes of the LIBERO simulator are those of LIBERO's own evaluation, and train a policy."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.isolation import child_environment
from rlinf_core.plugins import plugins

PEER = Path(__file__).with_name("libero_peer.py")


@pytest.fixture(scope="module")
def compared(libero_python: Path) -> dict[str, Any]:
    """How an episode of ours compares to LIBERO's."""
    done = subprocess.run(
        [str(libero_python), str(PEER), "7"],
        env=child_environment(plugins().get("simulators", "libero")),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["instruction", "physics", "furniture", "rewards"])
def test_an_episode_is_that_of_the_published_evaluation_bit_for_bit(
    compared: dict[str, Any], what: str
) -> None:
    assert compared[what] is True


@pytest.mark.slow
def test_the_state_is_what_liberos_observations_add_up_to(compared: dict[str, Any]) -> None:
    assert compared["state"] < 0.005  # theirs are read one of 25 physics steps earlier


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pictures", "meshes_outside"])
def test_no_pixel_differs_from_liberos_renderer_nor_where_unseen_meshes_are_left_out(
    compared: dict[str, Any], what: str
) -> None:
    assert compared[what] == 0


@pytest.mark.slow
def test_episodes_do_not_depend_on_how_many_models_are_kept(compared: dict[str, Any]) -> None:
    assert compared["evicted"] is True


@pytest.mark.slow
def test_success_pays_and_ends_an_episode_inside_a_chunk_and_shows(compared: dict[str, Any]) -> None:
    assert compared["success"] == {  # of two environments, in the first of which the stove was turned on
        "rewards": [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        "terminated": [[True, False, False], [False, False, False]],
        "executed": [[True, False, False], [True, True, True]],
        "success": [True, False],
        "glow": [True, False],  # on, and in the next episode
    }


@pytest.mark.slow
def test_two_hundred_steps_of_ppo_run_in_the_environment_of_its_own(tmp_path: Path) -> None:
    command = [
        *(str(Path(sys.executable).with_name("rlinf")), "train", "--simulator", "libero", "--output", "run"),
        *("--model", "mlp_policy", "--algo", "ppo", "--steps", "200", "--engine", "inline", "--ranks", "1"),
        *("simulator.task=0", "simulator.cameras=[]", "simulator.max_episode_steps=2"),
        *("simulator.settle_steps=0", "train.prompts_per_step=2", "eval.every=0", "eval.samples=2"),
        "env_pool.isolated=always",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "train/policy_loss" in row]
    assert len(trained) == 200
    assert all(row["train/truncated"] == 1.0 for row in trained)  # two steps do not bring a bowl to a plate
    assert all(math.isfinite(row["train/value_loss"]) for row in trained)
    assert trained[0]["train/entropy"] != trained[-1]["train/entropy"]  # the policy has changed
