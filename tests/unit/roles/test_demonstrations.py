"""Recorded episodes become decisions to imitate, with the loss and the gradient that follow by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlinf_core.api import (
    ActionSample,
    LoRAConfig,
    Model,
    OptimizerConfig,
    PolicyOutputs,
    Space,
    TrainerContext,
)
from rlinf_core.config.schema import Component, RunConfig
from rlinf_core.demos.lerobot import write_dataset
from rlinf_core.errors import DataError, ModelError
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.demonstrations import Demonstrations
from rlinf_core.roles.setup import Spaces
from rlinf_core.roles.update import Updater
from rlinf_core.testing.simple_backend import SimpleBackend
from rlinf_core.types import Trajectory

BLANK = Component("", "", NoConfig())
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SPACES = Spaces({"state": Space(shape=(1,))}, Space(shape=(1,)))


class Line(Model):
    """Actions of standard deviation 1 around `weight * state`, C of them a decision."""

    size = 1

    @property
    def chunk(self) -> int:
        return self.size

    def module(self, seed: int = 0) -> nn.Module:
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, 0.5)
        return layer

    def collate(self, rows: Sequence[Any], width: int | None = None) -> dict[str, Tensor]:
        names = {"state": "state", "actions": "actions", "executed": "executed"}
        columns = [{**row.observations, "actions": row.actions, "executed": row.executed} for row in rows]
        return {name: torch.from_numpy(np.stack([each[name] for each in columns])) for name in names}

    def policy_outputs(
        self, module: nn.Module, inputs: Mapping[str, Tensor], want: Any, sampling: Any = None
    ) -> PolicyOutputs:
        means_BT1 = module(inputs["state"])[..., None]
        each_BTC = -0.5 * (inputs["actions"] - means_BT1).square().squeeze(-1) - HALF_LOG_2PI
        return PolicyOutputs((each_BTC * inputs["executed"]).sum(-1))

    def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
        return ActionSample(actions, torch.zeros(len(actions)))


class Pair(Line):
    size = 2


def episode(states: Iterable[float], actions: Iterable[float]) -> Trajectory:
    acted = np.array(list(actions), dtype=np.float32)[:, None, None]
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(len(acted), dtype=bool),
        logprobs=np.zeros(len(acted), dtype=np.float32),
        weight_version=0,
        observations={"state": np.array(list(states), dtype=np.float32)[:, None]},
        actions=acted,
        success=True,
    )


TWO = [episode([1.0, 2.0], [1.5, -1.0]), episode([-2.0], [0.0])]


def updater(model: Model) -> Updater:
    context = TrainerContext(total_steps=9)
    trainer = SimpleBackend(NoConfig()).build(model, OptimizerConfig(lr=0.1), LoRAConfig(), context)
    blank = SimpleAlgorithm()
    return Updater(trainer, blank, model, RunConfig(BLANK, BLANK, BLANK, BLANK, simulator=BLANK), 0, 1)


class SimpleAlgorithm:
    """Nothing is asked of it."""

    class needs:
        critic = "none"


def test_loss_and_gradient_are_those_by_hand() -> None:
    # means 0.5, 1, -1; errors 1, -2, 1; the loss is their squares' half and a constant each
    made = updater(Line(NoConfig()))
    weight = made.trainer.module.weight
    seen: list[float] = []
    weight.register_hook(lambda gradient: seen.append(float(gradient)))
    report = made.imitate([Demonstrations(TWO, made.model, 0).batch(0, 3)])
    total, count = report.sums["imitation_loss"]
    assert count == 3
    assert total == pytest.approx(0.5 * (1 + 4 + 1) + 3 * HALF_LOG_2PI)
    assert sum(seen) == pytest.approx(-(1 * 1.0 + -2 * 2.0 + 1 * -2.0))  # minus error times state
    assert float(weight.detach()) == pytest.approx(0.4)  # one step of Adam against it


def test_a_chunk_begins_at_every_action_and_ends_with_its_episode() -> None:
    rows = Demonstrations(TWO, Pair(NoConfig()), 0).batch(0, 3)
    found = {float(row.observations["state"][0, 0]): row for row in rows}
    assert {state: row.executed.tolist() for state, row in found.items()} == {
        1.0: [[True, True]],
        2.0: [[True, False]],
        -2.0: [[True, False]],
    }
    assert found[1.0].actions[0, :, 0].tolist() == [1.5, -1.0]
    assert found[2.0].actions[0, 0, 0] == -1.0
    assert [row.mask.tolist() for row in rows] == [[True]] * 3


def test_every_epoch_has_each_decision_once_in_an_order_of_its_own() -> None:
    many = [episode(range(5), range(5)), episode(range(5, 12), range(5, 12))]
    recorded = Demonstrations(many, Line(NoConfig()), 3)
    drawn = [float(row.actions[0, 0, 0]) for step in range(9) for row in recorded.batch(step, 4)]
    epochs = [drawn[:12], drawn[12:24], drawn[24:]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
    assert all(one != other for one, other in pairwise(epochs))
    again = Demonstrations(many, Line(NoConfig()), 3)
    assert [float(row.actions[0, 0, 0]) for row in again.batch(5, 4)] == drawn[20:24]


def test_what_is_drawn_for_a_decision_follows_from_the_run_its_step_and_its_place() -> None:
    told: list[int] = []

    class Listening(Line):
        def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
            told.extend(seeds)
            return super().label(actions, seeds)

    for seed, step in ((3, 0), (3, 1), (4, 0)):
        Demonstrations(TWO, Listening(NoConfig()), seed).batch(step, 2)
    assert len(set(told)) == 6
    Demonstrations(TWO, Listening(NoConfig()), 3).batch(1, 2)
    assert told[6:] == told[2:4]


def test_what_a_folder_holds_comes_back_as_decisions(tmp_path: Path) -> None:
    write_dataset(tmp_path / "demos", TWO, fps=10, robot="line")
    rows = Demonstrations.load(str(tmp_path / "demos"), Line(NoConfig()), SPACES, 0).batch(0, 3)
    pairs = sorted((float(row.observations["state"][0, 0]), float(row.actions[0, 0, 0])) for row in rows)
    assert pairs == [(-2.0, 0.0), (1.0, 1.5), (2.0, -1.0)]


@pytest.mark.parametrize(
    ("spaces", "said"),
    [
        (
            Spaces({"state": Space(shape=(3,))}, Space(shape=(1,))),
            "'state' of shape [1], the simulator shows [3]",
        ),
        (
            Spaces({"images/top": Space(shape=(8, 8, 3))}, Space(shape=(1,))),
            "no 'images/top', which the simulator",
        ),
        (
            Spaces({"state": Space(shape=(1,))}, Space(shape=(4,))),
            "actions of shape [1], the simulator takes [4]",
        ),
        (
            Spaces({"state": Space(shape=(1,))}, Space(n=4)),
            "actions of shape [1], the simulator takes one of 4",
        ),
    ],
)
def test_episodes_of_another_simulator_are_refused(tmp_path: Path, spaces: Spaces, said: str) -> None:
    write_dataset(tmp_path / "demos", TWO, fps=10, robot="line")
    with pytest.raises(DataError) as raised:
        Demonstrations.load(str(tmp_path / "demos"), Line(NoConfig()), spaces, 0)
    assert said in str(raised.value)
    assert "warm_start.demonstrations" in str(raised.value)


def test_a_model_without_labels_says_so() -> None:
    class Other(Line):
        label = Model.label

    with pytest.raises(ModelError, match="Other does not learn from demonstrations"):
        Demonstrations(TWO, Other(NoConfig()), 0).batch(0, 1)
