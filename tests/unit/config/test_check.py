"""Combinations that cannot work are refused before anything starts."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check

EMBODIED = {"simulator": "line", "model": "mlp"}


@pytest.fixture
def warned(run, manager):
    return lambda *overrides, **flags: check(run(*overrides, **flags), manager)


def test_the_quickstart_and_an_embodied_run_pass_without_a_warning(warned):
    assert warned() == []
    assert warned(**EMBODIED) == []


def test_a_text_task_needs_data_and_reward(refused):
    lines = refused(model="hf_lm")
    assert [line.split(":")[0] for line in lines] == ["data", "reward"]
    assert "installed: exact, format, python" in lines[1]


def test_a_model_of_the_other_kind_is_refused(refused):
    assert refused(model="mlp", data="sort_digits", reward=("exact",)) == [
        "model: 'mlp' is for embodied tasks, this is one of kind text (no simulator is named)"
    ]
    assert refused(model="hf_lm", simulator="line") == [
        "model: 'hf_lm' is for text tasks, this is one of kind embodied (simulator 'line')"
    ]


def test_what_an_algorithm_needs_is_asked_of_the_others(refused):
    assert "backend 'fsdp' cannot compute them" in refused("algo.reference=true")[0]
    assert refused("algo.critic=head") == ["algo: 'grpo' needs a critic; model 'hf_lm' has no value head"]
    assert refused("algo.critic=head", backend="headless")[1:] == [
        "algo: 'grpo' needs a critic; backend 'headless' trains no value heads"
    ]


def test_adapters_need_every_part_to_take_them(refused, warned):
    assert warned(lora_rank=4) == []
    assert refused(lora_rank=4, rollout="bare") == [
        "lora.rank: 4 asks for adapters, but rollout 'bare' cannot use them; "
        "set lora.rank=0 (from --lora-rank)"
    ]


def test_sampling_that_the_rollout_engine_lacks_is_refused(refused):
    lines = refused("sampling={top_p: 0.9, top_k: 5, stop: [x]}", rollout="bare")
    assert [line.split(":")[0] for line in lines] == ["sampling.top_p", "sampling.top_k", "sampling.stop"]
    assert lines[0].endswith("does not offer it; set sampling.top_p=1.0 (from override)")


def test_batches_that_cannot_be_split_show_the_numbers_and_the_nearest_choices(refused):
    lines = refused("train.mini_batches=7", "train.prompts_per_step=6", group_size=4)
    assert lines == [
        "train.mini_batches: 6 prompts x group size 4 = 24 samples cannot be split into 7 equal "
        "mini-batches; choose 4 or 6 or 8 or 12 (from override)"
    ]


def test_fewer_samples_than_ranks_are_refused(refused):
    lines = refused("train.prompts_per_step=1", ranks=9, group_size=4)
    assert lines == [
        "train.prompts_per_step: 1 prompts x group size 4 = 4 samples, fewer than 9 ranks; choose "
        "train.prompts_per_step=3 or more, or ranks=4 or fewer"
    ]
    assert len(refused("train.prompts_per_step=1", "ranks=9", group_size=4)) == 1


def test_a_minimum_length_above_the_maximum_is_refused(refused):
    assert refused("sampling.min_new_tokens=9", "sampling.max_new_tokens=8")[0].startswith(
        "sampling.min_new_tokens: 9 is more than"
    )


def test_greedy_training_is_refused_and_greedy_validation_is_not(refused, warned):
    assert refused("sampling.temperature=0")[0].startswith("sampling.temperature: 0 draws one and the same")
    assert warned("eval.temperature=0") == []
    assert warned("sampling.temperature=0", "eval.every=0", steps=0) == []


def test_settings_that_an_embodied_task_does_not_use_are_refused(refused):
    lines = refused(
        "sampling.max_new_tokens=64",
        "reward_pool.workers=3",
        "train.max_prompt_tokens=9",
        data="sort_digits",
        **EMBODIED,
    )
    assert lines == [
        "data: an embodied task does not use it; remove it (from --data)",
        "sampling: an embodied task does not use it; remove it (from override)",
        "reward_pool: an embodied task does not use it; remove it (from override)",
        "train.max_prompt_tokens: an embodied task does not use it; remove it (from override)",
    ]


def test_imitation_needs_episodes_and_a_model_that_labels_them(refused, warned):
    lines = refused("warm_start.steps=3", **EMBODIED)
    assert [line.split(":")[0] for line in lines] == ["warm_start.demonstrations", "warm_start.steps"]
    assert "`rlinf demos record` writes one" in lines[0]
    assert lines[1] == (
        "warm_start.steps: model 'mlp' does not learn from demonstrations; set warm_start.steps=0 (from "
        "override)"
    )
    assert warned("warm_start.demonstrations=d", **EMBODIED) == [
        "warm_start.demonstrations: has no effect while warm_start.steps is 0 (from override)"
    ]
    assert refused("warm_start.demonstrations=d") == [
        "warm_start.demonstrations: a text task does not use it; remove it (from override)"
    ]


def test_settings_below_a_switch_that_is_off_are_warned_of(warned):
    assert warned("lora.alpha=32", "warm_start.lr=0.5", "warm_start.batch_size=64") == [
        "lora.alpha: has no effect while lora.rank is 0 (from override)",
        "warm_start.lr: has no effect while warm_start.steps is 0 (from override)",
    ]


def test_a_group_of_one_is_warned_of(warned):
    assert warned(group_size=1)[0].startswith("algo.group_size: 'grpo' compares the samples of a group")
    assert warned(algo="plain") == []


def test_a_warmup_as_long_as_the_run_is_warned_of(warned):
    assert warned("optimizer.warmup_steps=6", "train.mini_batches=2", steps=3)[0].startswith(
        "optimizer.warmup_steps: 6 is not below the 6 optimizer steps"
    )
    assert warned("optimizer.warmup_steps=5", "train.mini_batches=2", steps=3) == []


def test_settings_that_a_text_task_does_not_use_are_refused(refused):
    assert refused("train.num_envs=4") == [
        "train.num_envs: a text task does not use it; remove it (from override)"
    ]


def test_tools_need_an_engine_that_goes_on_and_stops_at_texts(refused, warned):
    assert warned("tools=adder", rollout="going") == []
    assert [line.partition(";")[0] for line in refused("tools=adder", rollout="bare")] == [
        "tools: rollout engine 'bare' cannot go on with a response after somebody else has said something",
        "agent.turns: rollout engine 'bare' does not stop at a text, where a call ends",
    ]
    assert len(refused("tools=adder", "agent.turns=chat", rollout="bare")) == 1


def test_marks_without_a_name_are_for_one_tool(refused, warned):
    marks = "agent={format: tags, marks: ['(', ')', '>', ',']}"
    assert warned("tools=[adder]", marks, rollout="going") == []
    assert refused("tools=[adder, clock]", marks, rollout="going") == [
        "agent.marks: '(' begins the calls of all 2 tools, so that nobody knows which is meant; write {name} "
        "into it, or name one tool (from override)"
    ]


def test_an_outside_agent_calls_tools_itself_and_is_not_made_in_parts(refused, warned):
    program = "agent.program=mine:play"
    assert warned(program, rollout="going") == []
    assert [line.partition(":")[0] for line in refused(program, "tools=adder", rollout="going")] == [
        "agent.program"
    ]
    partial = ("train.max_staleness=1", "train.partial_rollouts=true")
    assert any(
        "an episode of agent.program is played by one version" in line
        for line in refused(program, *partial, rollout="going")
    )
