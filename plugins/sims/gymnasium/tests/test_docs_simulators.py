"""What the page of simulators shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.options import RECIPES, Options
from rlinf_core.plugins import plugins

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/simulators.md").read_text()


def test_the_recipe_of_the_page_is_the_one_of_the_repository_and_passes_the_checks(tmp_path: Path) -> None:
    (shown,) = re.findall(r'```yaml title="balance.yaml"\n(.*?)```', PAGE, re.DOTALL)
    shipped = (RECIPES / "inverted-pendulum.yaml").read_text()
    assert shown == shipped.partition("\n")[2]  # below the comment
    recipe = tmp_path / "balance.yaml"
    recipe.write_text(shown)
    assert check(compose(Options(config=(recipe,))), plugins()) == []


def test_the_fetch_command_of_the_page_passes_the_checks() -> None:
    options = Options(
        simulator="gymnasium",
        model="mlp_policy",
        algo="grpo",
        overrides=(
            "simulator.id=FetchReach-v4",
            "simulator.imports=[gymnasium_robotics]",
            "simulator.kwargs={reward_type: dense}",
        ),
    )
    assert all(setting in PAGE for setting in options.overrides[:2])
    config = compose(options)
    assert check(config, plugins()) == []
    assert config.simulator is not None
    assert config.simulator.config.imports == ("gymnasium_robotics",)
    assert config.simulator.config.kwargs == {"reward_type": "dense"}


def test_the_example_of_the_page_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"# (\(2, 17\).*)", example)
    exec(
        example.replace("images=True", "images=False").replace('observation.images["main"].shape', "None"), {}
    )
    assert capsys.readouterr().out.split()[:2] == printed.split()[:2]
