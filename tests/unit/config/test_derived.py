"""Settings that follow from others: prompts from samples, and the critic's optimizer from the policy's."""

from __future__ import annotations

import pytest

from rlinf_core.config.dump import dump
from rlinf_core.config.options import RECIPES
from rlinf_core.config.reading.layers import Layer
from rlinf_core.config.resolve import load_recipe, resolve

SAMPLES = "train: {samples_per_step: 512}\n"


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe over the invented plugins."""

    def write(text, name="recipe.yaml"):
        path = tmp_path / name
        path.write_text(f"model: {{name: hf_lm, preset: tiny}}\ndata: sort_digits\nreward: exact\n{text}")
        return path

    return write


@pytest.mark.parametrize(
    ("words", "prompts"), [((), 64), (("algo=plain",), 512), (("algo.group_size=4",), 128)]
)
def test_samples_of_a_step_become_prompts_by_the_group_size(run, words, prompts):
    train = run("train.samples_per_step=512", *words).train
    assert (train.prompts_per_step, train.samples_per_step) == (prompts, 0)


def test_the_number_of_samples_stays_where_one_word_changes_the_algorithm(run, recipe):
    sizes = {
        algo: run(config=(recipe(SAMPLES),), algo=algo).train.prompts_per_step for algo in ("grpo", "plain")
    }
    assert sizes == {"grpo": 64, "plain": 512}


def test_prompts_say_where_they_come_from(run, recipe):
    path = recipe(SAMPLES)
    config = run(config=(path,))
    assert config.origins["train.prompts_per_step"] == f"samples_per_step=512, {path}"
    assert config.origins["train.samples_per_step"] == "default"


@pytest.mark.parametrize(("samples", "prompts"), [(500, 62), (3, 1), (513, 64)])
def test_samples_are_cut_to_whole_groups_and_at_least_one(run, samples, prompts):
    assert run(f"train.samples_per_step={samples}").train.prompts_per_step == prompts


def test_a_higher_layer_wins_with_either_key(run, recipe):
    one = run("train.prompts_per_step=16", config=(recipe(SAMPLES),))
    assert (one.train.prompts_per_step, one.origins["train.prompts_per_step"]) == (16, "override")
    other = run("train.samples_per_step=24", config=(recipe("train: {prompts_per_step: 16}\n"),))
    assert other.train.prompts_per_step == 3
    two = recipe("train: {prompts_per_step: 16}\n"), recipe(SAMPLES, "second.yaml")
    assert run(config=two).train.prompts_per_step == 64


@pytest.mark.parametrize(
    "words", [("prompts_per_step=4", "samples_per_step=64"), ("samples_per_step=64", "prompts_per_step=4")]
)
def test_both_keys_in_one_place_are_refused(problems, words):
    (line,) = problems(*(f"train.{word}" for word in words))
    first, second = (f"train.{word}" for word in words)
    assert line == f"{second.partition('=')[0]}: says the same as {first}; set one of them (from override)"


def test_zero_says_nothing(run, recipe):
    assert run("train.samples_per_step=0", "train.prompts_per_step=4").train.prompts_per_step == 4
    assert (
        run(
            "train.samples_per_step=0", config=(recipe("train: {prompts_per_step: 16}\n"),)
        ).train.prompts_per_step
        == 16
    )
    assert run("train.samples_per_step=0", config=(recipe(SAMPLES),)).train.prompts_per_step == 32


def test_a_run_that_is_read_again_has_the_same_prompts(run, manager):
    config = run("train.samples_per_step=512")
    again = resolve([Layer(dump(config), "RUN/config.yaml")], manager)
    assert (again.train, again.train.prompts_per_step) == (config.train, 64)


def test_the_packaged_quickstart_counts_samples():
    packaged = load_recipe(RECIPES / "quickstart.yaml")
    assert packaged.settings["train"]["samples_per_step"] == 512
    assert "prompts_per_step" not in packaged.settings["train"]


def test_the_critics_optimizer_is_the_policys_but_for_its_own_keys(run):
    config = run("optimizer.weight_decay=0.5", "critic_optimizer.grad_clip=3", lr=0.25)
    assert (config.critic_optimizer.lr, config.critic_optimizer.weight_decay) == (0.25, 0.5)
    assert (config.critic_optimizer.grad_clip, config.optimizer.grad_clip) == (3, 1.0)
    origins = {
        key: config.origins[f"critic_optimizer.{key}"] for key in ("lr", "weight_decay", "grad_clip", "eps")
    }
    assert origins == {"lr": "--lr", "weight_decay": "override", "grad_clip": "override", "eps": "default"}


def test_what_a_model_suggests_reaches_the_critics_optimizer(run):
    config = run(simulator="line", model="mlp")
    assert (config.critic_optimizer.lr, config.critic_optimizer.grad_clip) == (0.25, 9.0)


def test_a_key_set_to_the_class_default_is_set_all_the_same(run):
    config = run("optimizer.grad_clip=5", "critic_optimizer.grad_clip=1.0")
    assert (config.optimizer.grad_clip, config.critic_optimizer.grad_clip) == (5, 1.0)


def test_a_dump_holds_what_differs_and_reads_back(run, manager):
    config = run("critic_optimizer.lr=1e-5", "optimizer.lr=1e-3")
    dumped = dump(config)
    assert dumped["critic_optimizer"] == {"lr": 1e-5}
    assert resolve([Layer(dumped, "RUN/config.yaml")], manager).critic_optimizer == config.critic_optimizer
    assert "critic_optimizer" not in dump(run())


def test_a_wrong_value_of_the_optimizer_is_told_once(problems):
    assert len(problems("optimizer.lr=-1")) == 1
