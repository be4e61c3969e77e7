"""Losses and gradients that are not finite: left out, counted, written down, and too many end the run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    LoRAConfig,
    LossTerms,
    OptimizerConfig,
    TrainerContext,
)
from rlinf_core.config.schema import Component, RunConfig, TrainConfig
from rlinf_core.errors import DataError, TrainingError
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.batch_file import read_batch, write_batch
from rlinf_core.roles.guard import MOST_WRITTEN
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.testing.fakes import TinyTextModel, text_samples
from rlinf_core.testing.simple_backend import SimpleBackend
from rlinf_core.types import Sample, Sampling, Trajectory

BLANK = Component("", "", NoConfig())


class Plain(Algorithm):
    """The reward of a row is the advantage of its decisions, times `config`."""

    @property
    def needs(self) -> AlgorithmNeeds:
        return AlgorithmNeeds()

    def advantages(self, batch: Any) -> Advantages:
        return Advantages(batch.rewards_B[:, None] * batch.mask_BT * self.config)

    def denominator(self, mask_BT: Any) -> float:
        return float(mask_BT.sum())

    def loss(self, outputs: Any, batch: Any) -> LossTerms:
        total = -(outputs.logprobs_BT * batch.advantages_BT)[batch.mask_BT].sum()
        return LossTerms(total, {"policy_loss": (total.detach(), 1)})


def updater(folder: Path, scale: float = 1.0, **train: Any) -> Updater:
    settings = TrainConfig(micro_batch_tokens=1, **train)  # a row a micro-batch
    config = RunConfig(
        BLANK, BLANK, BLANK, BLANK, train=settings, output=str(folder), sampling=Sampling(max_new_tokens=6)
    )
    model = TinyTextModel(NoConfig())
    context = TrainerContext(rank=0, world_size=1, device="cpu", seed=0, total_steps=9)
    trainer = SimpleBackend(NoConfig()).build(model, OptimizerConfig(lr=0.1), LoRAConfig(), context)
    return Updater(trainer, Plain(scale), model, config, 0, 1)


def rows(*rewards: float) -> list[Sample]:
    return [replace(row, reward=reward) for row, reward in zip(text_samples(), rewards, strict=False)]


def weights(made: Updater) -> dict[str, Any]:
    return {name: t.clone() for bucket in made.trainer.weights() for name, t in bucket.tensors.items()}


def train(made: Updater, step: int, *parts: list[Sample]) -> dict[str, float]:
    update = StepUpdate(made, step)
    for part in parts:
        update.add(part)
    return update.finish().facts


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_with_a_loss_that_is_not_finite_is_left_out_counted_and_written(
    tmp_path: Path, bad: float
) -> None:
    made = updater(tmp_path)
    before = weights(made)
    facts = train(made, 6, rows(1.0, 0.5), rows(0.0, bad))
    assert facts["skipped_steps"] == 1.0
    assert all(torch.equal(value, before[name]) for name, value in weights(made).items())
    batch = read_batch(tmp_path / "not-finite" / "step_7-update_1")
    assert batch.facts["rows_with_such_a_loss"] == [3]
    assert batch.facts["rows_of_the_update"] == [0, 1, 2, 3]
    assert [row.reward for row in batch.rows[:3]] == [1.0, 0.5, 0.0]
    np.testing.assert_array_equal(batch.rows[1].logprobs, text_samples()[1].logprobs)
    assert train(made, 7, rows(1.0, 0.5))["skipped_steps"] == 0.0
    assert any(not torch.equal(value, before[name]) for name, value in weights(made).items())


def test_what_was_written_gives_the_same_loss_again(tmp_path: Path) -> None:
    train(updater(tmp_path), 0, rows(1.0, math.nan))
    kept: Any = read_batch(tmp_path / "not-finite" / "step_1-update_1").rows
    again = updater(tmp_path / "again")
    train(again, 0, kept)
    assert read_batch(tmp_path / "again" / "not-finite" / "step_1-update_1").facts[
        "rows_with_such_a_loss"
    ] == [1]


def test_only_the_mini_batch_with_the_row_is_left_out(tmp_path: Path) -> None:
    made = updater(tmp_path, mini_batches=2)
    assert train(made, 0, rows(1.0, 0.5, math.nan, 0.25))["skipped_steps"] == 1.0
    (folder,) = (tmp_path / "not-finite").iterdir()
    facts = read_batch(folder).facts
    assert facts["rows_with_such_a_loss"] == [2]
    assert 2 in facts["rows_of_the_update"]
    assert len(facts["rows_of_the_update"]) == 2


def test_a_gradient_that_overflows_with_a_finite_loss_is_left_out_too(tmp_path: Path) -> None:
    made = updater(tmp_path, scale=1e36)
    before = weights(made)
    facts = train(made, 0, rows(1.0))
    assert facts["skipped_steps"] == 1.0
    assert all(torch.equal(value, before[name]) for name, value in weights(made).items())
    assert read_batch(tmp_path / "not-finite" / "step_1-update_1").facts["rows_with_such_a_loss"] == []


def test_more_in_a_row_than_allowed_end_the_run_with_what_to_do(tmp_path: Path) -> None:
    made = updater(tmp_path, max_skipped_updates=2)
    for step in range(2):
        train(made, step, rows(math.nan))
    train(made, 2, rows(1.0))  # a good one in between: counted anew
    for step in range(3, 5):
        train(made, step, rows(math.nan))
    with pytest.raises(TrainingError, match="step_6: 3 optimizer steps of the policy in a row") as caught:
        train(made, 5, rows(1.0, math.nan))
    message = str(caught.value)
    assert "the loss of row 1 was not finite" in message
    assert "train.max_skipped_updates=2" in message
    assert "all weights are finite" in message
    assert str(tmp_path / "not-finite" / "step_6-update_1") in message


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    made = updater(tmp_path, max_skipped_updates=0)
    name, weight = next(iter(next(iter(made.trainer.weights())).tensors.items()))
    with torch.no_grad():
        weight.fill_(math.nan)
    with pytest.raises(TrainingError, match=f"weight '{name}' is not finite itself"):
        train(made, 0, rows(1.0, 0.5))


def test_rows_of_a_broken_policy_are_seen_although_they_give_no_gradient(tmp_path: Path) -> None:
    made = updater(tmp_path)
    broken = rows(0.0, 0.0)
    broken[1].logprobs = np.full(len(broken[1].mask), np.nan, dtype=np.float32)
    with pytest.raises(TrainingError, match="log-probabilities of row 1 were not finite when generated"):
        train(made, 0, broken)
    assert read_batch(tmp_path / "not-finite" / "step_1-update_0").facts["rows_with_such_logprobs"] == [1]


def test_imitation_is_guarded_too(tmp_path: Path) -> None:
    made = updater(tmp_path, max_skipped_updates=0)
    with torch.no_grad():
        next(iter(next(iter(made.trainer.weights())).tensors.values())).fill_(math.nan)
    with pytest.raises(TrainingError, match="warm_start_1: 1 optimizer steps"):
        made.imitate([rows(1.0, 1.0)])


def test_a_run_without_end_writes_a_few_batches_only(tmp_path: Path) -> None:
    made = updater(tmp_path, max_skipped_updates=100)
    for step in range(MOST_WRITTEN + 3):
        train(made, step, rows(math.nan))
    assert len(list((tmp_path / "not-finite").iterdir())) == MOST_WRITTEN


def test_an_episode_is_kept_with_its_pictures(tmp_path: Path) -> None:
    pictures = np.arange(2 * 3 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 3)
    row = Trajectory(
        group=3,
        replica=1,
        seed=9,
        mask=np.array([True, False]),
        logprobs=np.array([-1.5, 0.0], dtype=np.float32),
        weight_version=4,
        observations={"image": pictures},
        actions=np.ones((2, 1, 2), dtype=np.float32),
    )
    write_batch(tmp_path, [row], {"model": "policy"})
    found = read_batch(tmp_path)
    assert found.facts == {"model": "policy"}
    (back,) = found.rows
    assert isinstance(back, Trajectory)
    np.testing.assert_array_equal(back.observations["image"], pictures)
    assert (back.mask.dtype, back.group, back.seed) == (np.dtype(bool), 3, 9)


def test_the_arrays_are_read_by_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_batch(tmp_path, rows(1.0), {})
    found = load_file(tmp_path / "rows.safetensors")
    told = json.loads((tmp_path / "batch.json").read_text())["rows"][0]["sample"]
    np.testing.assert_array_equal(found[str(told["logprobs"]["array"])], text_samples()[0].logprobs)


def test_a_folder_without_a_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no batch"):
        read_batch(tmp_path)
