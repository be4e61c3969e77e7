"""Episodes of the ManiSkill simulator are those of ManiSkill, need no Vulkan, and train a policy."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
Found = dict[str, Any]


@pytest.fixture(scope="module")
def compared(inside: Callable[..., Found]) -> Found:
    """What a script found out there, where no Vulkan driver is."""
    return inside("maniskill_peer.py", VK_ICD_FILENAMES="/nonexistent.json", MS_ASSET_DIR="/nonexistent")


@pytest.mark.parametrize("what", ["start", "states", "rewards"])
def test_an_episode_is_maniskills_bit_for_bit_also_after_others_and_in_chunks(
    compared: Found, what: str
) -> None:
    assert compared["like_maniskill"][what] is True


@pytest.mark.parametrize("what", ["pushing", "targets", "rebuilt"])
def test_a_saved_state_goes_on_bit_for_bit_in_another_simulator(compared: Found, what: str) -> None:
    assert compared["saved"][what] is True


@pytest.mark.parametrize("what", ["shifted", "sparse", "different"])
def test_each_way_of_paying_is_told_apart(compared: Found, what: str) -> None:
    assert compared["rewards"][what] is True


def test_success_ends_an_episode_or_is_told_by_action_where_it_is_ignored(compared: Found) -> None:
    ends = compared["ends"]
    assert ends["terminated"] == ends["executed"] == [True] + [False] * 5
    assert ends["paid"] == [1.0] + [0.0] * 5
    assert ends["successes"] == [True] * 4 + [False] * 2
    assert ends["truncated"] == [False] * 3 + [True] + [False] * 2
    assert ends["ignored_terminated"] is False
    assert ends["succeeded"] == [True, True]


def test_a_batch_starts_each_episode_by_its_own_seed_and_looks_once(compared: Found) -> None:
    batch = compared["batch"]
    assert batch["calls"] == [["none", [5, 5, 5], [0]], ["none", [7, 7, 7], [2]], "look"]
    assert batch["shown"] == [5, 0, 7]
    assert batch["then"] == [6, 0, 8]  # an action of 2 counts as 1
    assert batch["sound"] == [True, False, True]
    assert batch["success"] == [False, False, True]
    assert batch["paid"] == [-0.4, -0.9, -0.2]


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("task", ["simulator.id (maniskill): there is no task 'PushCub-v1'; near names: PushCube-v1"]),
        ("import", ["simulator.imports (maniskill): 'no_such_module' cannot be imported"]),
        (
            "files",
            ["/nonexistent/data", ": ycb;", "MS_ASSET_DIR=/nonexistent", "download_asset PickSingleYCB-v1"],
        ),
        (
            "control",
            ["simulator.control_mode (maniskill)", "pd_wheel not in supported", "'pd_ee_delta_pose'"],
        ),
        ("robot", ["simulator.robot (maniskill)", "r2d2", "there are: ", "panda"]),
        ("reward", ["simulator.kwargs (maniskill): PegInsertionSide-v1", "'nothing'"]),
        ("unpaid", ["simulator.reward (maniskill): Empty-v1 does not pay by 'shifted'; use one of: sparse"]),
        (
            "renderer",
            ["pictures need Vulkan", "cpu: vk::", "VK_ICD_FILENAMES=/nonexistent.json", "apt-get install"],
        ),
        ("render", ["pictures need Vulkan"]),
        ("assets", ["simulator.assets (maniskill): PushCube-v1 takes none"]),
    ],
)
def test_what_does_not_exist_is_refused_by_its_key(compared: Found, what: str, parts: list[str]) -> None:
    message = compared["errors"][what]
    assert message.startswith("ConfigError: ")
    assert [part for part in parts if part not in message] == []


@pytest.mark.gpu
def test_a_batch_on_a_gpu_starts_again_alike_and_restarts_one_alone(inside: Callable[..., Found]) -> None:
    found = inside("maniskill_gpu.py")
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["one_batch"] is True
    assert found["same_start"] is True
    assert found["seed_decides"] is True
    assert found["others_stay"] is True
    assert found["limit"] == [[False, False, False, True]] * 4
    assert found["restored"] < 1e-4


def test_two_robots_act_in_one_box_and_the_family_is_among_the_tasks(compared: Found) -> None:
    assert compared["robots"] == [16]
    assert sum(name.startswith("PutOnPlateInScene25") for name in compared["tasks"]) == 14


def test_two_hundred_steps_of_ppo_run_in_two_processes_of_its_own_environment(tmp_path: Path) -> None:
    command = [
        *(
            str(Path(sys.executable).with_name("rlinf")),
            "train",
            "--simulator",
            "maniskill",
            "--output",
            "run",
        ),
        *("--model", "mlp_policy", "--algo", "ppo", "--steps", "200", "--engine", "inline", "--ranks", "1"),
        *("simulator.id=PushCube-v1", "simulator.max_episode_steps=2", "train.prompts_per_step=2"),
        *("eval.every=0", "eval.samples=2", "env_pool.isolated=always", "env_pool.processes=2"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "train/policy_loss" in row]
    assert len(trained) == 200
    assert all(row["train/truncated"] == 1.0 for row in trained)  # two steps do not push a cube to its goal
    assert all(math.isfinite(row["train/value_loss"]) for row in trained)
    assert trained[0]["train/entropy"] != trained[-1]["train/entropy"]  # the policy has changed
