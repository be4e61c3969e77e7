"""Whole runs on a simulator that shows pictures and gives instructions, in one process and in several."""

from __future__ import annotations

import json
import re
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
from rlinf_core.roles import setup, simulators
from rlinf_core.run.runner import Runner
from rlinf_core.run.view import View


class Lamp(Simulator):
    """A lamp burns on the left or the right of the picture, which the state says too; going to its side pays,
    by how far up to 1 the action goes. An episode has three actions."""

    def __init__(self, config: NoConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.action_space = Space(shape=(1,), low=-1.0, high=1.0)
        self.observation_space = {
            "images/main": Space(shape=(28, 28, 3), low=0.0, high=255.0),
            "state": Space(shape=(1,)),
        }
        self.max_episode_steps = 3
        self.sides = np.ones(num_envs)
        self.steps = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> Observation:
        for n, seed in enumerate(seeds):
            self.sides[n] = 1.0 if np.random.default_rng(seed).random() < 0.5 else -1.0
            self.steps[n] = 0
        return self._shown()

    def step(self, actions: Any) -> Transition:
        count, chunk = actions.shape[:2]
        executed = self.steps[:, None] + np.arange(chunk) < self.max_episode_steps
        rewards = (actions[..., 0] * self.sides[:, None] * executed).astype(np.float32)
        self.steps += executed.sum(1)
        late = self.steps >= self.max_episode_steps
        truncated = np.zeros((count, chunk), dtype=bool)
        for n in np.flatnonzero(late):
            truncated[n, int(executed[n].sum()) - 1] = True
            self.steps[n] = 0
        no = np.zeros((count, chunk), dtype=bool)
        return Transition(self._shown(), rewards, no, truncated, executed, no[:, 0], self._shown())

    def _shown(self) -> Observation:
        pictures = np.zeros((self.num_envs, 28, 28, 3), dtype=np.uint8)
        for n, side in enumerate(self.sides):
            columns = slice(14, 28) if side > 0 else slice(0, 14)
            pictures[n, :, columns, 0] = 255
        return Observation(
            state=self.sides[:, None].astype(np.float32),
            images={"main": pictures},
            instruction=["go to the red lamp"] * self.num_envs,
        )


@dataclass(frozen=True, kw_only=True)
class _LampSpec(SimulatorSpec):
    def load(self) -> type[Any]:
        return Lamp


class _Plugin:
    @hookimpl
    def rlinf_register_simulators(self) -> list[SimulatorSpec]:
        return [_LampSpec(name="lamp", summary="Go to the lamp", target="tests:Lamp")]


def offers(kind: str) -> list[Offer]:
    extra = [Offer("lamp", "lamp-for-tests", "1", _Plugin)] if kind == "simulators" else []
    return [*installed(kind), *extra]


def train(
    monkeypatch: pytest.MonkeyPatch, output: Path, algo: str, *overrides: str, **options: Any
) -> list[dict[str, Any]]:
    """The records of a run. Any: JSON values, and those of options."""
    manager = PluginManager(offers)
    for module in (setup, simulators):
        monkeypatch.setattr(module, "plugins", lambda: manager)
    common = ("trackers=[]", "model.preset=tiny", "model.chunk=2", "eval.samples=16", "eval.temperature=0")
    chosen = Options(
        simulator="lamp",
        model="pi0",
        algo=algo,
        engine="inline",
        ranks=1,
        output=str(output),
        overrides=(*common, *overrides),
        **{"lr": 1e-3, **options},
    )
    config = compose(chosen, manager)
    check(config, manager)
    with View(config, Console(file=StringIO())) as view:
        Runner(config, dump(config), view, resume=False).run()
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


FEW = ("train.steps=1", "train.prompts_per_step=4", "train.update_epochs=2", "train.mini_batches=2")
KINDS = {
    "sde": (),
    "one": ("model.noisy_steps=one",),
    "learned": ("model.noise=learned", "model.train=all"),
    "lora": ("lora.rank=4",),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_step_of_reinforcement_agrees_with_the_rollout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str, kind: str
) -> None:
    records = train(monkeypatch, tmp_path / "run", algo, *FEW, *KINDS[kind])
    (step,) = (record for record in records if "train/reward" in record)
    assert step["train/logprob_mismatch_max"] < 1e-4
    assert step["train/grad_norm"] > 0.0
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_flow_learns_to_go_to_the_lamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = ("train.steps=24", "train.prompts_per_step=8", "algo.group_size=8")
    records = train(monkeypatch, tmp_path / "run", "grpo", *few, lr=3e-3)
    found = [record["eval/reward"] for record in records if "eval/reward" in record]
    assert found[0] < 1.0
    assert found[-1] > 2.0


def test_the_command_of_the_page_is_accepted() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models-pi0.md").read_text()
    (command,) = re.findall(r"```bash\nrlinf train (.*)\n```", page)
    shown = CliRunner().invoke(app, ["config", "show", *command.split()])
    assert shown.exit_code == 0, shown.output
    assert "preset: tiny" in shown.output
