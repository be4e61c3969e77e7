"""The recipes that ship with rlinf compose and pass the checks with the plugins of this repository."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.compose import Options, compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import recipe_names
from rlinf_core.errors import ConfigError
from rlinf_core.plugins import plugins


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_passes_the_checks(name):
    config = compose(Options(recipe=name))
    assert check(config, plugins()) == []
    assert config.origins["model.name"] == f"recipe {name}"


def test_a_recipe_by_name_lies_below_files_and_flags(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("train: {steps: 7}\noptimizer: {lr: 0.5}\n")
    config = compose(Options(recipe="reacher", config=(own,), lr=0.25))
    assert (config.train.steps, config.train.prompts_per_step, config.optimizer.lr) == (7, 16, 0.25)
    assert config.origins["train.prompts_per_step"] == "recipe reacher"


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"--recipe reecher: .* quickstart, reacher.*Did you mean reacher\?"
    ):
        compose(Options(recipe="reecher"))


def test_the_quickstart_passes_the_checks():
    config = compose(Options())
    assert check(config, plugins()) == []
    assert {config.origins["model.name"], config.origins["data.name"]} == {"quickstart recipe"}


def test_a_minimal_recipe_in_fifteen_lines_trains_a_text_model(tmp_path):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "algo: {name: grpo, group_size: 16, clip_ratio_high: 0.28}\n"
        "model: org/base\n"
        "data: sort_digits\n"
        "reward: my_rewards:score\n"
        "train: {steps: 200, prompts_per_step: 16}\n"
    )
    config = compose(Options(config=(recipe,)))
    assert check(config, plugins()) == []
    assert dump(config)["reward"][0]["target"] == "my_rewards:score"
