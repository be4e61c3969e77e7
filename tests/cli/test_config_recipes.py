"""The recipes that ship with rlinf compose and pass the checks with the plugins of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.compose import Options, compose
from rlinf_core.config.dump import dump
from rlinf_core.plugins import plugins

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("**/*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=[path.stem for path in RECIPES])
def test_a_recipe_passes_the_checks(recipe):
    assert check(compose(Options(config=(recipe,))), plugins()) == []


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
