"""`rlinf plan`: plans for hand-written costs, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROFILE = (
    "components:\n"
    "  rollout: {curves: [{per_sample_s: 0.5}], memory: {fixed_bytes: 1073741824}}\n"
    "  actor: {curves: [{per_sample_s: 0.25, parallel_s: 4}], memory: {fixed_bytes: 1073741824}}\n"
)
TASK = ("train.prompts_per_step=8", "algo.group_size=8", "--ranks=2")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """64 samples: rollout 32 s on one device and 16 s on two; actor 16 s on one and 8 + 4 s on two."""
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    return f"--profile={path}"


def test_the_fastest_plan_comes_first_and_the_others_say_why_not(rlinf, profile):
    ended = rlinf("plan", *TASK, profile)
    assert ended.code == 0, ended.err
    assert "rollout > reward > actor: 64 samples a step on 2 x cpu (1 node)" in ended.err
    first, *others = [line.split("\t") for line in ended.out.splitlines()]
    assert first == ["1", "collocated", "28 s", "0%", "2.0 GiB", "rollout 0-1, actor 0-1", ""]
    assert {row[1] for row in others} >= {"disaggregated", "hybrid"}
    assert all(" slower (" in row[-1] for row in others)


def test_json_has_every_plan_with_its_numbers(rlinf, profile):
    told = json.loads(rlinf("plan", *TASK, profile, "--json").out)
    assert told["cluster"] == {"nodes": 1, "devices": {"cpu": 2}}
    assert told["samples"] == 64
    best = told["plans"][0]
    assert best["step_s"] == pytest.approx(16 + 8 + 4)
    assert best["components"]["actor"]["devices"] == [0, 1]
    assert [plan["step_s"] for plan in told["plans"]] == sorted(plan["step_s"] for plan in told["plans"])
    apart = next(plan for plan in told["plans"] if plan["mode"] == "disaggregated")
    assert apart["busy_s"]["rollout"] == pytest.approx(32)
    last_chunk = 16 / 8  # is trained after the rollout's end
    assert apart["step_s"] >= 32 + last_chunk - 1e-3
    assert apart["bubble_ratio"] == pytest.approx(1 - (32 + 16) / (2 * apart["step_s"]), abs=1e-3)


def test_what_is_made_ahead_is_not_waited_for(rlinf, profile):
    ahead = (*TASK, profile, "train.max_staleness=1")
    assert "64 samples a step, made ahead of their training, on" in rlinf("plan", *ahead).err
    plans = json.loads(rlinf("plan", *ahead, "--json").out)["plans"]
    apart = next(plan for plan in plans if plan["mode"] == "disaggregated")
    assert apart["step_s"] == pytest.approx(max(apart["busy_s"].values()), abs=1e-3)
    assert {part["chunk"] for part in apart["components"].values()} == {0}


def test_a_mode_restricts_the_plans(rlinf, profile):
    told = json.loads(rlinf("plan", *TASK, profile, "--mode=disaggregated", "--json").out)
    assert {plan["mode"] for plan in told["plans"]} == {"disaggregated"}


def test_the_printed_plan_is_accepted_as_a_setting(rlinf, profile, tmp_path):
    shown = rlinf("plan", *TASK, profile, "--mode=disaggregated", "--yaml").out
    (tmp_path / "plan.yaml").write_text(shown)
    assert rlinf("config", "show", *TASK, f"plan={tmp_path / 'plan.yaml'}").code == 0
    told = json.loads(rlinf("plan", *TASK, profile, f"plan={tmp_path / 'plan.yaml'}", "--json").out)
    assert told["plans"][0]["mode"] == "disaggregated"
    assert told["plans"][0]["reason"] == ""
    assert any(plan["reason"].endswith("but the settings fix the placement") for plan in told["plans"])


def test_a_placement_is_judged_beside_what_else_there_is(rlinf, profile):
    rows = rlinf("plan", *TASK, profile, "placement={rollout: 0-1, actor: 1}").out.splitlines()
    first, second = rows[0].split("\t"), rows[1].split("\t")
    assert first[1:3] == ["hybrid", "32 s"]  # 16 on two and 16 on one
    assert second[1:3] == ["collocated", "28 s"]
    assert second[-1] == "13% faster, but the settings fix the placement"


def test_another_cluster_is_planned_for(rlinf, profile, tmp_path):
    (tmp_path / "nodes.yaml").write_text("nodes: [{count: 8, devices: 8, memory_gib: 16}]\n")
    told = json.loads(rlinf("plan", *TASK[:2], profile, f"--cluster={tmp_path / 'nodes.yaml'}", "--json").out)
    assert told["cluster"] == {"nodes": 8, "devices": {"cpu": 64}}
    assert told["plans"][0]["components"]["rollout"]["devices"] == list(range(64))
    assert told["plans"][0]["step_s"] == pytest.approx(0.5 + 0.25 + 4)


def test_a_run_that_has_measured_has_a_profile(rlinf, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/profile.yaml").write_text(PROFILE)
    assert rlinf("plan", *TASK, f"--output={tmp_path / 'run'}").code == 0


def test_a_profile_of_something_else_is_told(rlinf, tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("fingerprint: {hardware: another}\n" + PROFILE)
    ended = rlinf("plan", *TASK, f"--profile={path}")
    assert ended.code == 0
    assert f"warning: {path} was made for something else" in ended.err


def test_without_a_profile_it_says_how_to_get_one(refused, tmp_path):
    said = refused("plan", *TASK, f"--output={tmp_path / 'none'}")
    assert said.startswith(
        "no profile says what the components cost; neither --profile nor schedule.profile is set"
    )
    assert f"there is no {tmp_path / 'none/profile.yaml'}" in said
    assert "A run with mode=auto measures one and writes RUN/profile.yaml" in said


def test_what_cannot_be_planned_is_refused(refused, profile, tmp_path):
    (tmp_path / "nodes.yaml").write_text("nodes: [{devices: 8, memory_gib: 0.5}]\n")
    nodes = f"--cluster={tmp_path / 'nodes.yaml'}"
    assert refused("plan", *TASK, profile, nodes).startswith("ranks: 2 counts devices of this machine")
    assert "rollout needs 1 GiB" in refused("plan", *TASK[:2], profile, nodes)
    assert "does not exist" in refused("plan", *TASK[:2], profile, "--cluster=missing.yaml")
    assert "cannot be read" in refused("plan", *TASK, "--profile=missing.yaml")
    assert "at least 2 devices" in refused("plan", *TASK[:2], "--ranks=1", profile, "--mode=hybrid")
    assert "device 2 does not exist" in refused("plan", *TASK, profile, "placement={actor: 0-2, rollout: 0}")


def test_planning_imports_no_torch(profile):
    code = (
        "import sys\nfrom rlinf_core.cli.app import app\n"
        f"app({['plan', *TASK, profile]!r}, standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
