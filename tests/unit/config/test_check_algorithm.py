"""What an algorithm asks for, against what the task and the other settings give."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check

EMBODIED = {"simulator": "line", "model": "mlp"}
OLD = "train.old_logprobs"


def test_a_greedy_baseline_is_for_text_alone(run, refused, manager):
    assert refused("algo=asking", "algo.greedy=true", **EMBODIED) == [
        "algo: 'asking' with algo.greedy=True compares with the greedy response to each prompt, which "
        "only text tasks have; choose other options or another algorithm"
    ]
    assert check(run("algo=asking", "algo.greedy=true"), manager) == []


def test_a_length_limit_is_for_text_alone(run, refused, manager):
    (line,) = refused("algo=asking", "algo.limit=true", "algo.clip_ratio=0.3", **EMBODIED)
    assert line.startswith("algo: 'asking' with algo.limit=True uses the length that responses may have")
    assert check(run("algo=asking", "algo.limit=true"), manager) == []


def test_recomputed_old_logprobs_cannot_be_the_rollouts(run, refused, manager):
    assert refused("algo=asking", "algo.recompute=true", f"{OLD}=rollout") == [
        f"{OLD}: 'asking' with algo.recompute=True needs the trainer's own log-probabilities, not the "
        f"rollout's; set {OLD}=auto (from override)"
    ]
    assert check(run(f"{OLD}=rollout"), manager) == []
    for choice in ("auto", "recompute"):
        assert check(run("algo=asking", "algo.recompute=true", f"{OLD}={choice}"), manager) == []


def test_the_level_of_logprobs_is_one_that_the_model_gives(refused):
    assert refused("algo=asking", "algo.level=token", **EMBODIED) == [
        "algo: 'asking' asks for log-probabilities of each token; model 'mlp' gives them for each: chunk"
    ]


@pytest.mark.parametrize("level", ["token", "action"])
def test_text_has_one_level_of_logprobs(refused, level):
    assert refused("algo=asking", f"algo.level={level}") == [
        f"algo: 'asking' asks for log-probabilities of each {level}, which is for embodied tasks: in text "
        "each decision is one token; leave it at chunk"
    ]


def test_selection_runs_with_episodes_too(run, manager):
    assert check(run("algo=asking", "algo.rounds=3", **EMBODIED), manager) == []


def test_a_chunk_has_no_effect_where_groups_are_selected_first(run, manager):
    (line,) = check(run("algo=asking", "algo.rounds=3", "schedule.chunk=8"), manager)
    assert line.startswith("schedule.chunk: has no effect: training needs every sample of a step")


def test_an_optimizer_without_a_critic_is_told(run, manager):
    words = ("critic_optimizer.lr=0.5", "critic_optimizer.grad_clip=1.0")
    assert check(run(*words), manager) == [
        "critic_optimizer.lr: has no effect: algorithm 'grpo' with these settings trains no critic of its "
        "own (from override)"
    ]
    assert check(run("optimizer.lr=0.5"), manager) == []
