"""Whole runs of a tiny OpenVLA in a simulator that shows a picture and gives an instruction."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.cli.app import app
from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.plugins import NoConfig, Offer, PluginManager, SimulatorSpec, hookimpl
from rlinf_core.plugins.offers import installed
from rlinf_core.roles import setup
from rlinf_core.run.runner import Runner
from rlinf_core.run.view import View

TEXTS = ("go down", "go up")


class Lamps(Simulator):
    """A lamp shines on the left or on the right, where the first action dimension is to point; the second is
    to go up or down, as the instruction says. Each of two actions pays how much they do, -1 to 1."""

    def __init__(self, config: NoConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.action_space = Space(shape=(2,), low=-1.0, high=1.0)
        self.observation_space = {"images/top": Space(shape=(56, 56, 3), low=0.0, high=255.0)}
        self.max_episode_steps = 2
        self.cases = np.zeros(num_envs, dtype=np.int64)
        self.steps = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.cases = np.array([np.random.default_rng(seed).integers(4) for seed in seeds])
        self.steps[:] = 0
        return self._show()

    def step(self, actions: Any) -> Transition:
        at_NC = self.steps[:, None] + np.arange(actions.shape[1])
        executed_NC, late_NC = at_NC < self.max_episode_steps, at_NC == self.max_episode_steps - 1
        wanted_N12 = (np.stack([self.cases % 2, self.cases // 2], 1) * 2 - 1)[:, None]
        rewards_NC = ((wanted_N12 * actions).mean(2) * executed_NC).astype(np.float32)
        self.steps = at_NC[:, -1] + 1
        self.steps[late_NC.any(1)] = 0
        none_NC, seen = np.zeros_like(late_NC), self._show()
        return Transition(seen, rewards_NC, none_NC, late_NC, executed_NC, none_NC[:, 0], seen)

    def _show(self) -> Observation:
        pictures = np.zeros((self.num_envs, 56, 56, 3), dtype=np.uint8)
        for picture, case in zip(pictures, self.cases, strict=True):
            picture[:, 28:] = 255 * (case % 2)
            picture[:, :28] = 255 * (1 - case % 2)
        return Observation(images={"top": pictures}, instruction=[TEXTS[case // 2] for case in self.cases])


@dataclass(frozen=True, kw_only=True)
class _LampsSpec(SimulatorSpec):
    def load(self) -> type[Any]:
        return Lamps


class _Plugin:
    @hookimpl
    def rlinf_register_simulators(self) -> list[SimulatorSpec]:
        return [_LampsSpec(name="lamps", summary="Point at a lamp", target="tests:Lamps")]


def offers(kind: str) -> list[Offer]:
    extra = [Offer("lamps", "lamps-for-tests", "1", _Plugin)] if kind == "simulators" else []
    return [*installed(kind), *extra]


def train(monkeypatch: pytest.MonkeyPatch, output: Path, algo: str, *words: str) -> list[dict[str, Any]]:
    """The metrics of a run's steps. Any: numbers."""
    manager = PluginManager(offers)
    monkeypatch.setattr(setup, "plugins", lambda: manager)
    options = Options(
        simulator="lamps",
        model="openvla",
        algo=algo,
        engine="inline",
        ranks=1,
        output=str(output),
        overrides=("trackers=[]", "model.preset=tiny", "train.prompts_per_step=4", "eval.samples=4", *words),
    )
    config = compose(options, manager)
    check(config, manager)
    with View(config, Console(file=StringIO())) as view:
        Runner(config, dump(config), view, resume=False).run()
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "train/reward" in record]


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("grpo", ()),
        ("grpo", ("algo.logprob_level=token", "train.mini_batches=2")),
        ("ppo", ()),
        ("ppo", ("model.chunk=2", "train.update_epochs=2")),
        ("ppo", ("algo.critic=own",)),
        ("grpo", ("lora.rank=4",)),
        ("ppo", ("lora.rank=4",)),
    ],
)
def test_steps_of_every_kind_update_the_policy_that_acts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str, words: tuple[str, ...]
) -> None:
    steps = train(monkeypatch, tmp_path / "run", algo, "train.steps=2", *words)
    assert len(steps) == 2
    for step in steps:
        assert step["train/grad_norm"] > 0.0
        assert step["train/logprob_mismatch_max"] < 1e-4
        assert np.isfinite(step["train/reward"])
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()
    assert (tmp_path / "run" / "export" / "tokenizer.json").exists()


@pytest.mark.slow
def test_a_random_policy_learns_within_thirty_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("train.steps=30", "train.prompts_per_step=16", "algo.group_size=8", "algo.logprob_level=token")
    steps = train(monkeypatch, tmp_path / "run", "grpo", *words, "optimizer.lr=3e-3")
    assert abs(steps[0]["train/reward"]) < 0.3  # of 2 at most; picture or instruction alone give up to 1
    assert np.mean([step["train/reward"] for step in steps[-6:]]) > 0.5


def test_the_command_of_the_page_is_accepted() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models-openvla.md").read_text()
    (command,) = re.findall(r"```bash\nrlinf train (.*)\n```", page)
    shown = CliRunner().invoke(app, ["config", "show", *shlex.split(command)])
    assert shown.exit_code == 0, shown.output
    assert "reach the ball" in shown.output
