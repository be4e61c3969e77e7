"""Policies beside the run's own: what they take over, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.dump import diff, dump
from rlinf_core.config.reading.layers import Layer
from rlinf_core.config.resolve import resolve
from rlinf_core.config.schema import of_policy

AGENT = ("agent.program=./a.py:a", "rollout=going")


def test_what_a_policy_leaves_unsaid_is_as_the_runs(run: Any) -> None:
    config = run(
        *("model.path=/own", "algo.clip_ratio=0.3", "algo.group_size=4", "optimizer.betas=[0.8, 0.9]"),
        *("policies.judge.optimizer.lr=0.5", "policies.judge.model.path=/other", "policies.twin={}"),
        *("policies.stranger.algo=plain", "policies.stranger.warm_start=false", "lora.rank=2"),
    )
    judge, twin, stranger = (config.policies[name] for name in ("judge", "twin", "stranger"))
    assert (judge.model.config.path, judge.model.config.preset) == ("/other", "tiny")
    assert (judge.optimizer.lr, judge.optimizer.betas) == (0.5, (0.8, 0.9))
    assert (judge.algo.config.clip_ratio, judge.algo.config.group_size) == (0.3, 4)
    assert (twin.model, twin.algo, twin.optimizer) == (config.model, config.algo, config.optimizer)
    assert (stranger.algo.name, stranger.warm_start, stranger.lora.rank) == ("plain", False, 2)
    assert judge.warm_start


def test_the_run_as_it_is_for_one_of_them(run: Any) -> None:
    config = run("policies.judge.optimizer.lr=0.5", "sampling.temperature=0.7")
    seen = of_policy(config, "judge")
    assert (seen.optimizer.lr, seen.sampling.temperature, seen.policies) == (0.5, 0.7, {})
    assert of_policy(config, "policy").optimizer == config.optimizer


def test_a_dump_has_all_of_it_and_a_later_change_is_seen(run: Any, manager: Any) -> None:
    config = run("policies.judge.optimizer.lr=0.5", "policies.judge.algo.clip_ratio=0.4")
    dumped = json.loads(json.dumps(dump(config)))
    again = resolve([Layer(dumped, "RUN/config.yaml")], manager)
    assert replace(again, origins={}) == replace(config, origins={})
    other = dump(run("policies.judge.optimizer.lr=0.25", "policies.judge.algo.clip_ratio=0.4"))
    assert diff(dumped, json.loads(json.dumps(other))) == {"policies.judge.optimizer.lr": (0.5, 0.25)}


def test_settings_come_from_where_they_were_set(run: Any) -> None:
    origins = run("policies.judge.optimizer.lr=0.5", "algo.clip_ratio=0.4", steps=2).origins
    assert origins["policies.judge.optimizer.lr"] == "override"
    assert origins["policies.judge.algo.clip_ratio"] == "override"  # that of the run
    assert origins["policies.judge.model.preset"] == "quickstart recipe"
    assert origins["policies.judge.warm_start"] == "default"


def test_a_path_that_a_policy_inherits_lies_beside_the_recipe_too(run: Any, tmp_path: Any) -> None:
    (tmp_path / "rows.jsonl").touch()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {name: filed, path: rows.jsonl}\npolicies: {judge: {}}\n")
    config = run(config=(recipe,), data="sort_digits", reward=("exact",))
    assert config.policies["judge"].model == config.model
    assert config.model.config.path == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("policies.policy={}", "not 'policy', which is the run's own"),
        ("policies={a b: {}}", "policies.a b: a policy's name is letters, digits"),
        ("policies=3", "policies: needs names with keys below them"),
        ("policies.judge=3", "policies.judge: needs keys below it"),
        (
            "policies.judge.optimiser.lr=1",
            "policies.judge.optimiser: unknown key (from override); a policy has:",
        ),
        ("policies.judge.optimizer.rl=1", "policies.judge.optimizer.rl: unknown key"),
        ("policies.judge.optimizer.lr=fast", "policies.judge.optimizer.lr: needs a number, got 'fast'"),
        ("policies.judge.model.patch=x", "policies.judge.model.patch: unknown key"),
        ("policies.judge.algo=grop", "no algorithms plugin 'grop'"),
    ],
)
def test_what_does_not_fit_is_named(problems: Any, setting: str, told: str) -> None:
    assert any(told in line for line in problems(setting)), problems(setting)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((), "policies: judge would never be called; name agent.program"),
        (
            (*AGENT, "policies.judge.algo={name: grpo, group_size: 3}"),
            "policies.judge: algo.group_size: 3, and the run's is 8",
        ),
        (
            (*AGENT, "policies.judge.algo={name: asking, rounds: 2}"),
            "policies.judge: algo: 'asking' asks for rounds of generation, which only the run's own",
        ),
        ((*AGENT, "algo.critic=own"), "algo: 'grpo' with these settings trains a critic of its own, which"),
        (
            (*AGENT, "schedule.dynamic=in-step", "ranks=2"),
            "schedule.dynamic: in-step lends devices to the training of one policy",
        ),
        (
            (*AGENT, "schedule.scale=[{step: 1, actor: 2}]"),
            "schedule.scale: the number of ranks of several policies does not change while they train",
        ),
    ],
)
def test_runs_that_cannot_have_several(refused: Any, settings: tuple[str, ...], told: str) -> None:
    found = refused("policies.judge={}", *settings)
    (line,) = (line for line in found if "polic" in line or "scale" in line or "lends" in line)
    assert line.startswith(told)


def test_what_a_policy_asks_is_checked_against_the_plugins(refused: Any) -> None:
    found = refused(*AGENT, "policies.judge.model=mlp")
    assert any(line.startswith("policies.judge: model: 'mlp' is for embodied tasks") for line in found)


def test_policies_of_an_embodied_task_are_refused(refused: Any) -> None:
    found = refused("policies.judge.optimizer.lr=1", simulator="line", model="mlp")
    assert any(line.startswith("policies: an embodied task does not use it; remove it") for line in found)


def test_several_that_can_be_pass(run: Any, manager: Any) -> None:
    assert check(run(*AGENT, "policies.judge.algo=plain", "policies.twin={}"), manager) == []
