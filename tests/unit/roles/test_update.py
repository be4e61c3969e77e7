"""Whose old log-probabilities a loss gets."""

from __future__ import annotations

from dataclasses import replace
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
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.update import Updater
from rlinf_core.testing.fakes import TinyTextModel, text_samples
from rlinf_core.testing.simple_backend import SimpleBackend
from rlinf_core.types import Sample, Sampling

BLANK = Component("", "", NoConfig())
ROLLOUT, OWN, NONE = "rollout", "own", None


class Fixed(Algorithm):
    """Advantages of 1."""

    @property
    def needs(self) -> AlgorithmNeeds:
        return AlgorithmNeeds(recompute_old=self.config)

    def advantages(self, batch: Any) -> Advantages:
        self.seen = batch
        return Advantages(batch.mask_BT.float())

    def denominator(self, mask_BT: Any) -> float:
        return float(mask_BT.sum())

    def loss(self, outputs: Any, batch: Any) -> LossTerms:
        return LossTerms(-(outputs.logprobs_BT * batch.advantages_BT * batch.mask_BT).sum())


def updater(recompute: bool, old: str = "auto") -> Updater:
    config = RunConfig(
        BLANK,
        BLANK,
        BLANK,
        BLANK,
        train=TrainConfig(old_logprobs=old),  # type: ignore[arg-type]
        sampling=Sampling(max_new_tokens=6),
    )
    model = TinyTextModel(NoConfig())
    context = TrainerContext(rank=0, world_size=1, device="cpu", seed=0, total_steps=9)
    trainer = SimpleBackend(NoConfig()).build(model, OptimizerConfig(), LoRAConfig(), context)
    return Updater(trainer, Fixed(recompute), model, config, 0, 1)


def rows(version: int) -> list[Sample]:
    return [
        replace(row, reward=1.0, weight_version=version, logprobs=np.full(len(row.mask), -9.0, np.float32))
        for row in text_samples()
    ]


@pytest.mark.parametrize(
    ("recompute", "old", "several", "stale", "expected"),
    [
        (False, "auto", False, False, NONE),
        (False, "auto", True, False, OWN),
        (False, "auto", False, True, ROLLOUT),
        (False, "auto", True, True, ROLLOUT),
        (False, "recompute", False, False, OWN),
        (False, "rollout", True, False, ROLLOUT),
        (True, "auto", False, False, NONE),  # of one update they are those of its own forward pass
        (True, "auto", False, True, NONE),
        (True, "auto", True, False, OWN),
        (True, "auto", True, True, OWN),
        (True, "recompute", False, True, OWN),
    ],
)
def test_old_logprobs(recompute: bool, old: str, several: bool, stale: bool, expected: str | None) -> None:
    made = updater(recompute, old)
    samples = rows(made.trainer.version - stale)
    batch, _, columns = made.judge(samples, several=several)
    if expected is NONE:
        assert columns.old_BT is None
        return
    assert columns.old_BT is not None
    if expected == ROLLOUT:
        torch.testing.assert_close(columns.old_BT, batch.logprobs_BT)
        assert float(columns.old_BT.min()) == -9.0
    else:
        own_BT = made.estimate(samples, frozenset({"logprobs"})).logprobs_BT * batch.mask_BT
        torch.testing.assert_close(columns.old_BT, own_BT)
        assert -9.0 < float(columns.old_BT.min()) < 0.0


def test_an_algorithm_is_told_of_staleness_and_the_longest_response() -> None:
    made = updater(recompute=False)
    _, _, columns = made.judge(rows(made.trainer.version - 2), several=False)
    assert isinstance(made.algorithm, Fixed)
    assert made.algorithm.seen.staleness_B.tolist() == [2, 2, 2, 2]
    assert made.algorithm.seen.max_length == columns.max_length == 6


def test_a_critic_does_not_know_the_version_of_the_policy() -> None:
    made = updater(recompute=False)
    made.critic = True
    made.judge(rows(made.trainer.version - 2), several=False)
    assert isinstance(made.algorithm, Fixed)
    assert made.algorithm.seen.staleness_B is None


def test_an_episode_has_no_longest_response() -> None:
    made = updater(recompute=False)
    made.config = replace(made.config, simulator=BLANK)
    assert made.judge(rows(0), several=False)[2].max_length == 0
