"""`rlinf demos record` writes a dataset, or says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.demos.lerobot import read_dataset
from rlinf_core.errors import ConfigError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demos", "record", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_episodes_are_recorded_with_the_simulators_settings(tmp_path: Path) -> None:
    folder = tmp_path / "demos"
    said = run(
        *("--simulator", "metaworld", "--episodes", "3", "--output", str(folder)),
        *("simulator.task=reach-v3", "simulator.reward=sparse", "--noise", "0.1"),
    )
    assert said == f"3 episodes of metaworld in {folder}; the expert succeeded in 3 of 3\n"
    episodes = read_dataset(folder)
    assert [episode.step_rewards[-1] for episode in episodes] == [1.0, 1.0, 1.0]
    assert all(episode.actions.shape[1:] == (1, 4) for episode in episodes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--simulator", "gymnasium", "simulator.id=Reacher-v5"),
            "it has no expert to record; those with one: ",
        ),
        ((), "simulator: no plugin is named"),
        (("--simulator", "metaworld", "simulator.tusk=x"), "simulator.tusk"),
        (("--simulator", "metaworld", "--images", "gif"), "--images gif: use png or video"),
        (("--simulator", "metaworld", "--envs", "0"), "--envs: 0: must be 1 or more"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(*arguments, "--output", str(tmp_path / "demos"))
    assert said in str(raised.value)
    assert not (tmp_path / "demos").exists()


def test_training_without_the_episodes_is_refused_before_anything_starts(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    job = ("train", "--simulator=metaworld", "--model=mlp_policy", "--algo=grpo", "warm_start.steps=3")
    said = refused(*job, f"warm_start.demonstrations={tmp_path}", f"--output={tmp_path / 'run'}")
    assert f"warm_start.demonstrations: {tmp_path} is no LeRobot dataset" in said
    assert "`rlinf demos record --output FOLDER` writes one" in said
    assert not (tmp_path / "run").exists()
