"""What values are taken, and what is said of those that are not."""

from __future__ import annotations

import pytest


def test_an_unknown_key_lists_the_known_ones_and_the_nearest(problems):
    assert problems("algo.clip_ratoi=0.3") == [
        "algo.clip_ratoi: unknown key (from override); grpo has: group_size, clip_ratio, clip_ratio_high, "
        "baseline, reference, critic, schedule. Did you mean 'clip_ratio'?"
    ]


def test_all_problems_of_a_composition_are_told_together(problems, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "algo: {name: grop}\nmodel: hf_lm\ntrian: {steps: 1}\ntrain: {steps: many, old_logprobs: rolout}\n"
        "optimizer: {lr: -1, betas: 0.9}\nseed: one\n"
    )
    lines = problems("sampling.top_p=0", config=(path,))
    assert [line.split(":")[0].split(" ")[0] for line in lines] == [
        "trian",
        "algo",
        "train.steps",
        "train.old_logprobs",
        "optimizer.lr",
        "optimizer.betas",
        "sampling.top_p",
        "seed",
    ]
    assert lines[0].startswith(f"trian: unknown section (from {path}); there are: algo, ")
    assert lines[0].endswith("ranks. Did you mean 'train'?")
    assert lines[1].startswith(f"algo (from {path}): no algorithms plugin 'grop'")
    assert lines[2] == f"train.steps: needs a whole number, got 'many' (from {path})"
    assert "needs one of auto, rollout, recompute, got 'rolout'" in lines[3]
    assert lines[3].endswith("Did you mean 'rollout'?")
    assert lines[4] == f"optimizer.lr: must be 0 or more, got -1.0 (from {path})"
    assert lines[6] == "sampling.top_p: must be above 0 and at most 1, got 0.0 (from override)"


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("optimizer.lr=1e-5", lambda config: config.optimizer.lr == 1e-5),
        ("optimizer.lr='1e-5'", lambda config: config.optimizer.lr == 1e-5),
        ("optimizer.lr=1", lambda config: type(config.optimizer.lr) is float),
        ("train.steps=1e3", lambda config: config.train.steps == 1000 and type(config.train.steps) is int),
        ("optimizer.betas=[0.9, 0.95]", lambda config: config.optimizer.betas == (0.9, 0.95)),
        ("sampling.stop=['\\n', END]", lambda config: config.sampling.stop == ("\\n", "END")),
        ('sampling.stop=["\\n"]', lambda config: config.sampling.stop == ("\n",)),
        ("eval.temperature=0", lambda config: config.eval.temperature == 0.0),
        ("eval.temperature=null", lambda config: config.eval.temperature is None),
        ("algo.baseline=leave-one-out", lambda config: config.algo.config.baseline == "leave-one-out"),
        ("checkpoint.export=false", lambda config: config.checkpoint.export is False),
        ("algo.clip_ratio_high=0.28", lambda config: config.algo.config.clip_ratio_high == 0.28),
    ],
)
def test_values_are_read_as_their_type(run, override, read):
    assert read(run(override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=1.5", "train.steps: needs a whole number, got 1.5"),
        ("train.steps=true", "train.steps: needs a whole number, got True"),
        ("optimizer.lr=fast", "optimizer.lr: needs a number, got 'fast'"),
        ("optimizer.lr=nan", "optimizer.lr: needs a number"),
        ("checkpoint.export=1", "checkpoint.export: needs true or false, got 1"),
        ("model.preset=7", "model.preset: needs a text (quote it), got 7"),
        ("optimizer.betas=[0.9]", "optimizer.betas: needs a list of 2, got [0.9]"),
        ("lora.target_modules=q_proj", "lora.target_modules: needs a list, such as [q_proj], got 'q_proj'"),
        ("algo.clip_ratio_high=wide", "algo.clip_ratio_high: needs a number or null, got 'wide'"),
        ("algo.schedule=3", "algo.schedule: needs keys below it, got 3"),
        (
            "algo.schedule.stop=3",
            "algo.schedule.stop: unknown key (from override); schedule has: start",
        ),
        ("algo.clip_ratio=0", "algo (grpo): clip_ratio must be above 0, got 0.0 (from override)"),
        ("reward.case=low", "reward.case (exact): leaves no room for strip (from override)"),
        ("train=5", "train: needs keys below it, such as 'train: {KEY: VALUE}', got 5"),
        ("algo=5", "algo: needs a plugin's name or '{name: NAME, KEY: VALUE}', got 5"),
        ("algo.name=5", "algo: a plugin's name is a text, got 5"),
        ("engine=null", "engine: no plugin is named; installed: local. Choose one by engine=NAME"),
        ("reward.3.strip=true", "reward.3: there are 1, counted from 0"),
        ("reward.weight=heavy", "reward.0.weight: needs a number, got 'heavy'"),
        ("data=jsonl", "data.path: must be set (jsonl has no default for it)"),
        ("seed=-1", "seed: must be 0 or more, got -1"),
        ("output=7", "output: needs a text (quote it), got 7"),
        ("train.prompts_per_step=0", "train.prompts_per_step: must be 1 or more, got 0"),
        ("reward_pool.max_error_rate=2", "reward_pool.max_error_rate: must be between 0 and 1, got 2.0"),
        ("lora.dropout=1", "lora.dropout: must be 0 or more and below 1, got 1.0"),
        ("checkpoint.keep=-1", "checkpoint.keep: must be 0 or more, got -1"),
    ],
)
def test_a_value_that_does_not_fit_says_what_would(problems, override, message):
    assert any(line.startswith(message) for line in problems(override)), problems(override)


def test_a_missing_key_of_the_group_size_is_an_unknown_key(problems):
    lines = problems(algo="plain", group_size=4)
    assert lines == ["algo.group_size: unknown key (from --group-size); plain has no settings."]


def test_values_of_a_mapping_are_read_as_their_type(run, problems):
    given = {"model": "hf_lm", "reward": ("exact",)}
    config = run("data={name: jsonl, path: a, options: {size: 3}}", **given)
    assert config.data.config.options == {"size": 3}
    lines = problems("data={name: jsonl, path: a, options: {size: x}}", **given)
    assert lines[0].startswith("data.options: needs a whole number, got {'size': 'x'}")
