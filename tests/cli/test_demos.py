"""`rlinf demos record` writes a dataset, or says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.demos.lerobot import read_dataset
from rlinf_core.errors import ConfigError, RlinfError
from rlinf_core.plugins import plugins


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
        (("--simulator", "metaworld", "--fps", "0"), "--fps: 0: must be 1 or more"),
        (("--simulator", "metaworld", "--step", "3"), "--step 3: it is about a policy that plays"),
        (("--simulator", "metaworld", "--expert-share", "0.5"), "name its run by --policy RUN"),
        (("--simulator", "metaworld", "--append"), "demos is no LeRobot dataset: there is no such folder"),
        (("--append", "--fps", "5"), "--fps beside --append: the dataset that is there says it"),
        (("--append", "--images", "png"), "--images beside --append"),
        (("--policy", "nowhere"), "--policy nowhere: there is no run here"),
        (("--policy", "nowhere", "--simulator", "metaworld"), "--simulator beside --policy nowhere: the "),
        (("--policy", "nowhere", "--expert-share", "1.5"), "--expert-share: 1.5: must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(RlinfError) as raised:
        run(*arguments, "--output", str(tmp_path / "demos"))
    assert said in str(raised.value)
    assert not (tmp_path / "demos").exists()


def settings(folder: Path, *words: str) -> Path:
    """The folder of a run that was never trained."""
    shown = CliRunner().invoke(app, ["config", "show", *words], catch_exceptions=False)
    folder.mkdir()
    (folder / "config.yaml").write_text(shown.stdout)
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "its task is one of text, without a simulator whose expert knows better"),
        (
            ("--simulator=gymnasium", "simulator.id=Pendulum-v1", "--model=mlp_policy", "--algo=ppo"),
            "its simulator 'gymnasium' has no expert to record; those with one: metaworld",
        ),
        (
            ("--simulator=metaworld", "--model=mlp_policy", "--algo=ppo"),
            "--step latest: {run} has no such checkpoint",
        ),
    ],
)
def test_a_run_whose_policy_cannot_be_relabelled_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    policy = settings(tmp_path / "run", *words)
    with pytest.raises(RlinfError) as raised:
        run("--policy", str(policy), "--output", str(tmp_path / "demos"))
    assert said.format(run=policy) in str(raised.value)


def test_a_model_that_cannot_imitate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = settings(tmp_path / "run", "--simulator=metaworld", "--model=mlp_policy", "--algo=ppo")
    spec = plugins().get("models", "mlp_policy")
    monkeypatch.setitem(vars(spec), "provides", replace(spec.provides, demonstrations=False))
    with pytest.raises(ConfigError, match="its model 'mlp_policy' does not learn from demonstrations"):
        run("--policy", str(policy), "--output", str(tmp_path / "demos"))


def test_training_without_the_episodes_is_refused_before_anything_starts(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    job = ("train", "--simulator=metaworld", "--model=mlp_policy", "--algo=grpo", "warm_start.steps=3")
    said = refused(*job, f"warm_start.demonstrations={tmp_path}", f"--output={tmp_path / 'run'}")
    assert f"warm_start.demonstrations: {tmp_path} is no LeRobot dataset" in said
    assert "`rlinf demos record --output FOLDER` writes one" in said
    assert not (tmp_path / "run").exists()
