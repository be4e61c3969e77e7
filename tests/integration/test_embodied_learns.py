"""A perceptron learns to reach a point in a toy simulator, through the whole run, in one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.plugins import NoConfig, Offer, PluginManager, SimulatorSpec, hookimpl
from rlinf_core.plugins.offers import installed
from rlinf_core.roles import setup, simulators
from rlinf_core.run.runner import Runner
from rlinf_core.run.summary import RunSummary
from rlinf_core.run.view import View


class Reach(Simulator):
    """A point in a square moves up to 0.2 an action towards, or away from, a goal near the edge. Each
    action costs the distance that is left; within 0.15 the episode ends with success."""

    def __init__(self, config: NoConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.action_space = Space(shape=(2,), low=-1.0, high=1.0)
        self.observation_space = {"state": Space(shape=(4,))}
        self.max_episode_steps = 15
        self.state = np.zeros((num_envs, 4), dtype=np.float32)
        self.steps = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> Observation:
        for n, seed in enumerate(seeds):
            self._restart(n, seed)
        return Observation(state=self.state)

    def step(self, actions: Any) -> Transition:
        self.state[:, :2] += 0.2 * actions[:, 0]
        self.steps += 1
        distance = np.linalg.norm(self.state[:, :2] - self.state[:, 2:], axis=1)
        success = distance < 0.15
        late = ~success & (self.steps >= self.max_episode_steps)
        final = Observation(state=self.state.copy())
        for n in np.flatnonzero(success | late):
            self._restart(int(n), int(n))
        column = np.ones((self.num_envs, 1), dtype=bool)
        rewards = -distance[:, None].astype(np.float32)
        return Transition(
            Observation(state=self.state), rewards, success[:, None], late[:, None], column, success, final
        )

    def _restart(self, n: int, seed: int) -> None:
        angle = np.random.default_rng(seed).uniform(0, 2 * np.pi)
        self.state[n] = (0.0, 0.0, np.cos(angle), np.sin(angle))
        self.steps[n] = 0


@dataclass(frozen=True, kw_only=True)
class _ReachSpec(SimulatorSpec):
    def load(self) -> type[Any]:
        return Reach


class _Plugin:
    @hookimpl
    def rlinf_register_simulators(self) -> list[SimulatorSpec]:
        return [_ReachSpec(name="reach", summary="Reach a point", target="tests:Reach")]


def offers(kind: str) -> list[Offer]:
    extra = [Offer("reach", "reach-for-tests", "1", _Plugin)] if kind == "simulators" else []
    return [*installed(kind), *extra]


COMMON = ("trackers=[]", "train.prompts_per_step=8", "eval.samples=32", "eval.temperature=0")
Records = list[dict[str, Any]]


def train(
    monkeypatch: pytest.MonkeyPatch, output: Path, *overrides: str, seed: int = 0, algo: str = "grpo"
) -> tuple[RunSummary, Records]:
    manager = PluginManager(offers)
    for module in (setup, simulators):
        monkeypatch.setattr(module, "plugins", lambda: manager)
    options = Options(
        simulator="reach",
        model="mlp_policy",
        algo=algo,
        engine="inline",
        ranks=1,
        lr=0.01,
        seed=seed,
        output=str(output),
        overrides=(*COMMON, *overrides),
    )
    config = compose(options, manager)
    check(config, manager)
    with View(config, Console(file=StringIO())) as view:
        summary = Runner(config, dump(config), view, resume=False).run()
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line) for line in lines]


def test_a_perceptron_learns_to_reach_a_point_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary, records = train(monkeypatch, tmp_path / "run", "train.steps=50", "optimizer.schedule=linear")
    assert summary.first["eval/success"] < 0.3
    assert summary.last["eval/success"] > 0.9
    steps = [record for record in records if "train/reward" in record]
    assert len(steps) == 50
    assert steps[-1]["train/reward"] > steps[0]["train/reward"] + 3.0
    assert steps[-1]["train/success"] > 0.9
    assert max(step["train/logprob_mismatch_max"] for step in steps) < 1e-5
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()


@pytest.mark.parametrize("critic", ["head", "own"])
def test_a_critic_learns_what_states_are_worth_and_the_policy_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, critic: str
) -> None:
    words = ("train.steps=40", "train.prompts_per_step=48", "train.update_epochs=2", "train.mini_batches=2")
    more = ["algo.gamma=0.99", f"algo.critic={critic}", "algo.critic_warmup=2"]
    more += ["algo.value_coef=0.5"] if critic == "head" else []
    summary, records = train(monkeypatch, tmp_path / "run", *words, *more, algo="ppo")
    assert summary.last["eval/success"] > 0.8
    steps = [record for record in records if "train/reward" in record]
    assert steps[0]["train/explained_variance"] < 0.2
    assert steps[-1]["train/explained_variance"] > 0.4
    norm = "train/critic_grad_norm" if critic == "own" else "train/grad_norm"
    assert all(step[norm] > 0.0 for step in steps)
    assert "train/policy_loss" not in steps[1]
    assert max(step.get("train/logprob_mismatch_max", 0.0) for step in steps) < 1e-4
    assert "train/policy_loss" in steps[2]


def test_without_learning_rate_the_policy_ratio_stays_one_over_several_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    still = ("train.steps=2", "train.mini_batches=2", "train.update_epochs=2", "optimizer.lr=0")
    _, records = train(monkeypatch, tmp_path / "run", *still, "algo.kl_coef=0.1")
    for record in (record for record in records if "train/reward" in record):
        assert record["train/approx_kl"] < 1e-9
        assert record["train/kl"] < 1e-9
        assert record["train/clip_fraction"] == 0.0


def test_the_same_seed_gives_the_same_run_whatever_the_number_of_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rewards = [
        [record.get("train/reward") for record in train(monkeypatch, tmp_path / envs, *few)[1]]
        for envs in ("7", "64")
        for few in [("train.steps=2", f"train.num_envs={envs}")]
    ]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-4)
