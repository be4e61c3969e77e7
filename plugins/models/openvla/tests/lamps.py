"""A simulator that shows a picture and gives an instruction, and whole runs of small models in it."""

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


def train(
    monkeypatch: pytest.MonkeyPatch, output: Path, model: str, algo: str, *words: str
) -> list[dict[str, Any]]:
    """The metrics of a run's steps. Any: numbers."""
    manager = PluginManager(offers)
    for module in (setup, simulators):
        monkeypatch.setattr(module, "plugins", lambda: manager)
    options = Options(
        simulator="lamps",
        model=model,
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
