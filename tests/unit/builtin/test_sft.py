"""Supervised fine-tuning as mathematics, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.builtin.algorithms.config import SFTConfig
from rlinf_core.builtin.algorithms.sft import SFT
from rlinf_core.errors import ConfigError
from rlinf_core.testing import parametrize_with_checks

MASK_BT = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
LOGPROBS_BT = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -9.0, -9.0], [-9.0, -9.0, -9.0]])


def loss(aggregation: str) -> float:
    algorithm = SFT(SFTConfig(loss_aggregation=aggregation))  # type: ignore[arg-type]
    scored = ScoredBatch(
        rewards_B=torch.zeros(3),
        groups_B=torch.arange(3),
        mask_BT=MASK_BT,
        logprobs_BT=torch.zeros(3, 3),
        truncated_B=torch.zeros(3, dtype=torch.bool),
    )
    weights_BT = algorithm.advantages(scored).advantages_BT
    batch = TrainBatch({}, MASK_BT, weights_BT, torch.zeros(3, 3))
    terms = algorithm.loss(PolicyOutputs(LOGPROBS_BT), batch)
    total, count = terms.metrics["imitation_loss"]
    assert (float(total), float(count)) == (6.5, 4.0)
    return float(terms.total) / algorithm.denominator(MASK_BT)


def test_every_token_counts_the_same_or_every_demonstration() -> None:
    assert loss("token-mean") == pytest.approx((1 + 2 + 3 + 0.5) / 4)
    assert loss("sequence-mean") == pytest.approx((6 / 3 + 0.5) / 2)


def test_an_unknown_aggregation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="use token-mean or sequence-mean"):
        SFTConfig(loss_aggregation="mean")  # type: ignore[arg-type]


@parametrize_with_checks("algorithms", "sft")
def test_it_keeps_the_promises_of_its_interface(check: Callable[[], None]) -> None:
    check()
