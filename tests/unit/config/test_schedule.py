"""Settings of where and how components run: layers, and what cannot work together."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.config.show import commented_yaml

TASK = "model: {name: hf_lm, preset: tiny}\ndata: sort_digits\nreward: exact\n"


def test_a_flag_names_the_mode_and_a_wrong_one_is_told_apart(run, problems):
    assert run().mode == "auto"
    assert run(mode="hybrid").mode == "hybrid"
    assert problems(mode="collocate") == [
        "mode: needs one of auto, collocated, disaggregated, hybrid, got 'collocate' (from --mode)."
        " Did you mean 'collocated'?"
    ]


def test_a_higher_layer_moves_single_components(run, manager, tmp_path):
    (tmp_path / "low.yaml").write_text(f"{TASK}placement: {{'actor, rollout': 0-7, environment: 3}}\n")
    config = run("placement.actor=0-3", config=(tmp_path / "low.yaml",))
    assert config.placement == {"rollout": "0-7", "environment": 3, "actor": "0-3"}
    assert config.origins["placement.rollout"] == str(tmp_path / "low.yaml")
    assert config.origins["placement.actor"] == "override"
    whole = run("placement={'rollout,actor': all}", config=(tmp_path / "low.yaml",))
    assert whole.placement == {"environment": 3, "rollout,actor": "all"}
    assert run("placement=null", config=(tmp_path / "low.yaml",)).placement == {}
    assert run("placement=null", "placement.actor=1").placement == {"actor": 1}


def test_a_placement_is_a_mapping(problems):
    assert problems("placement=0-7") == ["placement: needs keys below it, got '0-7' (from override)"]


def test_placements_survive_being_written_and_read(run, manager, tmp_path):
    placed = "placement={'actor,rollout': 0-3, environment: {node_group: a, placement: 1}}"
    config = run(placed, "schedule.profile_steps=5", mode="hybrid")
    path = tmp_path / "shown.yaml"
    path.write_text(commented_yaml(config))
    again = compose(Options(config=(path,)), manager)
    assert dump(again) == dump(config)
    assert again.placement == {"actor,rollout": "0-3", "environment": {"node_group": "a", "placement": 1}}


def test_a_plan_lies_beside_its_recipe(run, tmp_path):
    (tmp_path / "plan.yaml").write_text("")
    (tmp_path / "recipe.yaml").write_text(f"{TASK}plan: plan.yaml\nschedule: {{profile: other.yaml}}\n")
    config = run(config=(tmp_path / "recipe.yaml",))
    assert config.plan == str(tmp_path / "plan.yaml")
    assert config.schedule.profile == "other.yaml"


def test_a_plan_stands_alone(refused):
    lines = refused("plan=p.yaml", "placement.actor=0", "schedule.chunk=8", mode="hybrid")
    assert lines == [
        f"{key}: the plan p.yaml (from override) says it already; drop {key} (from {origin}), or the plan "
        "by plan=null"
        for key, origin in (("mode", "--mode"), ("placement", "override"), ("schedule.chunk", "override"))
    ]


@pytest.mark.parametrize("mode", ["disaggregated", "hybrid"])
def test_one_device_leaves_only_one_mode(refused, run, manager, mode):
    (line,) = refused(ranks=1, mode=mode)
    assert line.startswith(
        f"mode: {mode} needs components on devices of their own, so at least 2 devices, and"
    )
    assert line.endswith("this run has 1; choose mode=collocated, or ranks=2 or more (from --mode)")
    check(run(mode="collocated"), manager, 1)
    check(run(mode=mode), manager, 2)


def test_chunks_hold_whole_groups_and_no_more_than_a_step(refused, run, manager):
    sizes = ("train.prompts_per_step=4", "algo.group_size=8")
    (line,) = refused(*sizes, "schedule.chunk=12")
    assert "12 is no multiple of the group size 8; choose 8 or 16 (from override)" in line
    (line,) = refused(*sizes, "schedule.chunk=40")
    assert "40 is more than the 4 prompts x group size 8 = 32 samples of a step; choose 32 or fewer" in line
    assert check(run(*sizes, "schedule.chunk=16"), manager) == []
    assert check(run("algo=plain", "train.prompts_per_step=4", "schedule.chunk=3"), manager) == []


def test_more_groups_than_environments_are_refused(refused):
    task = ("model=mlp", "simulator=line")
    (line,) = refused(*task, "train.num_envs=4", "schedule.stages=5")
    assert line.startswith("schedule.stages: 5 groups of 4 environments leave some empty")
    (line,) = refused("schedule.stages=2")
    assert line == "schedule.stages: a text task does not use it; remove it (from override)"


def test_settings_without_effect_are_told(run, manager):
    said = check(run("placement.actor=0", "schedule.profile_steps=3"), manager)
    assert said == [
        "schedule.profile_steps: has no effect while placement says where everything runs (from override)"
    ]
    (said,) = check(run("schedule.chunk=8", mode="collocated"), manager)
    assert said.startswith(
        "schedule.chunk: has no effect: collocated components take turns on the same devices"
    )
    (said,) = check(run("schedule.chunk=8", "train.mini_batches=2"), manager)
    assert said.startswith(
        "schedule.chunk: has no effect: training needs every sample of a step before it begins"
    )
