"""A policy plays, its expert labels, and it learns from both (DAgger): whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rlinf_sim_metaworld.experts import expert_action
from safetensors.torch import load_file
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.demos import read_dataset
from rlinf_core.roles.setup import Spaces, build, build_model
from rlinf_core.run.evaluating import without_training
from rlinf_core.run.export import find_checkpoint
from rlinf_core.run.relabelling import acting

REACH = ("--simulator", "metaworld", "simulator.task=reach-v3")
QUICK = ("--model=mlp_policy", "--engine=inline", "--ranks=1", "trackers=[]", "eval.every=0")


def rlinf(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps whose policy decides three actions at once, with two recorded episodes beside it."""
    folder = tmp_path_factory.mktemp("short")
    limit = "simulator.max_episode_steps=80"
    rlinf("demos", "record", *REACH, limit, "--episodes=2", "--envs=2", "--fps=10", "-o", folder / "demos")
    told = (f"warm_start.demonstrations={folder / 'demos'}", "model.chunk=3", "eval.samples=1")
    rlinf(
        "sft", *REACH, limit, *QUICK, *told, "eval.temperature=0", "--steps=2", f"--output={folder / 'run'}"
    )
    return folder


def test_added_episodes_are_labelled_in_every_state_that_the_policy_came_to(short: Path) -> None:
    said = rlinf(
        *("demos", "record", "--policy", short / "run", "--step", "2", "--append", "-o", short / "demos"),
        *("--episodes", "3", "--envs", "3", "--expert-share", "0", "simulator.max_episode_steps=10"),
    )
    assert said == (
        f"3 episodes of metaworld in {short / 'demos'}, 5 by now; the policy succeeded in 0 of 3\n"
    )
    info = json.loads((short / "demos/meta/info.json").read_text())
    assert (info["total_episodes"], info["fps"]) == (5, 10)
    added = read_dataset(short / "demos")[2:]
    for episode in added:
        states = episode.observations["state"]
        assert episode.actions.shape == (10, 1, 4)
        expected = [expert_action("reach-v3", state[:39]) for state in states]
        np.testing.assert_allclose(episode.actions[:, 0], np.stack(expected), atol=1e-6)
    starts = [episode.observations["state"][0].tolist() for episode in read_dataset(short / "demos")]
    assert len({tuple(start) for start in starts}) == 5


def test_the_policy_that_acts_is_that_of_the_checkpoint(short: Path) -> None:
    config = without_training(compose(Options(config=(short / "run/config.yaml",))))
    simulator = build(config.simulator, 2, 0)
    model = build_model(config, Spaces(simulator.observation_space, simulator.action_space))
    module = model.module(config.seed)
    module.load_state_dict(load_file(short / "run/export/model.safetensors"), strict=False)
    shown = {"state": simulator.reset([1, 2]).state}
    simulator.close()
    expected = model.act(module.eval(), {"state": torch.from_numpy(shown["state"])}, [5, 6], True).actions
    with acting(config, find_checkpoint(short / "run", "latest")) as act:
        np.testing.assert_allclose(act(shown, [5, 6]), expected.detach().numpy(), atol=1e-6)
    assert expected.shape == (2, 3, 4)


def success(run: Path) -> float:
    last = (run / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["eval/success"])


@pytest.mark.slow
def test_a_policy_whose_states_are_labelled_reaches_more_often(tmp_path: Path) -> None:
    """Three episodes of an expert are too few to clone; sixteen of the policy's own, labelled, mend it."""
    demos, limit = tmp_path / "demos", "simulator.max_episode_steps=100"
    told = (
        *REACH,
        limit,
        *QUICK,
        f"warm_start.demonstrations={demos}",
        "model.hidden=[128,128]",
        "--steps=600",
    )
    more = (
        "train.prompts_per_step=128",
        "optimizer.schedule=cosine",
        "eval.samples=40",
        "eval.temperature=0",
    )
    rlinf("demos", "record", *REACH, limit, "--episodes=3", "--output", demos)
    rlinf("sft", *told, *more, f"--output={tmp_path / 'first'}")
    said = rlinf("demos", "record", "--policy", tmp_path / "first", "--episodes=16", "--append", "-o", demos)
    assert "16 episodes of metaworld" in said
    assert "19 by now; the policy with 0.25 of its decisions by the expert succeeded in " in said
    rlinf("sft", *told, *more, f"--output={tmp_path / 'second'}")
    assert success(tmp_path / "first") < 0.6
    assert success(tmp_path / "second") > success(tmp_path / "first") + 0.3
