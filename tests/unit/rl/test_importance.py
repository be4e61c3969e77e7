"""Importance weights against hand-computed numbers."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from rlinf_core.errors import ConfigError
from rlinf_core.rl.importance import Level, Mode, truncated_importance

TRAINER = torch.tensor([[0.1, 0.2, 7.0], [-1.0, -2.0, -3.0]])
MASK = torch.tensor([[True, True, False], [True, True, True]])


def test_token_importance_is_capped_and_one_off_the_mask() -> None:
    trainer = torch.tensor([[0.0, -1.0, 5.0, torch.nan]])
    rollout = torch.tensor([[0.0, -0.5, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    weights = truncated_importance(trainer, rollout, mask, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[1.0, math.exp(-0.5), 2.0, 1.0]]))


def test_sequence_importance_is_the_capped_product_of_the_rows_trained_tokens() -> None:
    trainer = torch.tensor([[0.1, 0.2, 7.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    weights = truncated_importance(trainer, torch.zeros(2, 3), mask, cap=1.2, level="sequence")
    torch.testing.assert_close(weights, torch.tensor([[1.2, 1.2, 1.0], [math.exp(-3)] * 3]))


def test_geometric_importance_is_the_mean_log_ratio_of_the_rows_trained_tokens() -> None:
    weights = truncated_importance(TRAINER, torch.zeros(2, 3), MASK, cap=1.1, level="geometric")
    torch.testing.assert_close(weights, torch.tensor([[1.1, 1.1, 1.0], [math.exp(-2)] * 3]))


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [[math.exp(0.1), math.exp(0.2), 1.0], [math.exp(-1), 0.0, 0.0]]),
        ("sequence", [[math.exp(0.3), math.exp(0.3), 1.0], [0.0, 0.0, 0.0]]),
        ("geometric", [[math.exp(0.15), math.exp(0.15), 1.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_a_mask_leaves_out_what_is_too_far_on_either_side(level: Level, expected: list[list[float]]) -> None:
    # kept are log-ratios of at most 1.5 in size
    weights = truncated_importance(TRAINER, torch.zeros(2, 3), MASK, math.exp(1.5), level, "mask")
    torch.testing.assert_close(weights, torch.tensor(expected))
    flipped = truncated_importance(-TRAINER, torch.zeros(2, 3), MASK, math.exp(1.5), level, "mask")
    assert torch.equal(flipped == 0, weights == 0)


def test_a_mask_that_would_keep_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"importance_cap: 1.0: .*it must be above 1"):
        truncated_importance(TRAINER, TRAINER, MASK, 1.0, mode="mask")


@pytest.mark.parametrize("level", get_args(Level))
@pytest.mark.parametrize("mode", get_args(Mode))
def test_equal_probabilities_weigh_one_and_no_gradient_flows(level: Level, mode: Mode) -> None:
    trainer = TRAINER.clone().requires_grad_()
    weights = truncated_importance(trainer, TRAINER, MASK, 2.0, level, mode)
    assert torch.equal(weights, torch.ones(2, 3))
    assert not weights.requires_grad
    assert torch.isfinite(truncated_importance(trainer * 1e4, TRAINER, MASK, torch.inf, level, mode)).all()
