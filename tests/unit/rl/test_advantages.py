"""Advantages against the reference numbers for two groups of four."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlinf_core.rl.advantages import (
    batch_statistics,
    group_advantages,
    group_statistics,
    on_last_decision,
    spread_over_tokens,
    whiten,
)

REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
LENGTHS = torch.tensor([5, 3, 4, 2, 5, 5, 1, 3])
MASK = torch.arange(5)[None] < LENGTHS[:, None]


def advantages(rewards: Tensor = REWARDS, groups: Tensor = GROUPS, **options: object) -> Tensor:
    return group_advantages(rewards, group_statistics(rewards, groups), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.783348, -1.305580, 0.783348, -0.261116]),
        ({"scale_by_std": False}, [0.375, -0.625, 0.375, -0.125]),
        ({"scale_by_std": False, "baseline": "leave-one-out"}, [0.5, -0.833333, 0.5, -0.166667]),
    ],
)
def test_advantages_equal_the_reference_numbers(options: dict[str, object], expected: list[float]) -> None:
    torch.testing.assert_close(
        advantages(**options), torch.tensor([*expected, 0, 0, 0, 0]), atol=1e-6, rtol=0
    )


def test_whitening_over_tokens_gives_the_reinforce_plus_plus_numbers() -> None:
    whitened = whiten(spread_over_tokens(REWARDS, MASK), MASK)
    expected = torch.tensor([0.433766, -2.602599, 0.433766, -1.084416, *[0.433766] * 4])
    torch.testing.assert_close(whitened, expected[:, None] * MASK, atol=1e-6, rtol=0)


def test_whitening_after_a_group_baseline_gives_the_baseline_forms_numbers() -> None:
    centred = advantages(scale_by_std=False)
    whitened = whiten(spread_over_tokens(centred, MASK), MASK)
    expected = torch.tensor([1.105075, -2.240017, 1.105075, -0.567471, *[-0.149334] * 4])
    torch.testing.assert_close(whitened, expected[:, None] * MASK, atol=1e-6, rtol=0)


def test_whitening_ignores_what_stands_off_the_mask_and_survives_empty_and_equal_batches() -> None:
    values = spread_over_tokens(REWARDS, MASK)
    littered = values.masked_fill(~MASK, torch.nan)
    assert torch.equal(whiten(littered, MASK), whiten(values, MASK))
    assert torch.equal(whiten(values, torch.zeros_like(MASK)), torch.zeros_like(values))
    equal = torch.full((2, 3), 0.1)
    assert torch.equal(whiten(equal, torch.ones(2, 3, dtype=torch.bool)), torch.zeros(2, 3))


def test_rows_of_a_group_may_come_in_any_order_with_any_id() -> None:
    order = torch.tensor([6, 1, 4, 0, 3, 7, 2, 5])
    renamed = torch.tensor([900, -3])[GROUPS]
    torch.testing.assert_close(advantages(REWARDS[order], renamed[order]), advantages()[order])


@pytest.mark.parametrize("value", [1.0, 0.1, 0.95, 1e8, -3.3])
@pytest.mark.parametrize("baseline", ["group", "leave-one-out"])
def test_a_group_without_spread_has_exactly_zero_advantage(value: float, baseline: str) -> None:
    rewards = torch.full((7,), value)
    assert torch.equal(
        advantages(rewards, torch.zeros(7, dtype=torch.int64), baseline=baseline), torch.zeros(7)
    )


@pytest.mark.parametrize("baseline", ["group", "leave-one-out"])
def test_nearly_equal_groups_stay_finite_and_of_ordinary_size(baseline: str) -> None:
    result = advantages(
        torch.tensor([0.0, *[0.95] * 7]), torch.zeros(8, dtype=torch.int64), baseline=baseline
    )
    assert torch.isfinite(result).all()
    assert result.abs().max() < 8 / 7 * 2.4749  # (n - 1) / sqrt(n), times n / (n - 1) for leave-one-out


def test_a_group_of_one_has_zero_advantage() -> None:
    for baseline in ("group", "leave-one-out"):
        result = advantages(torch.tensor([0.7, 1.0, 0.0]), torch.tensor([5, 9, 9]), baseline=baseline)
        assert result[0] == 0
        assert result[1] > 0


def test_masked_positions_get_no_advantage() -> None:
    assert torch.equal(spread_over_tokens(REWARDS, MASK).ne(0), MASK & REWARDS.ne(0)[:, None])


def test_the_baseline_of_the_whole_batch_is_its_mean_whatever_the_groups() -> None:
    # the mean of all is 6.5 / 8
    centred = group_advantages(REWARDS, batch_statistics(REWARDS), scale_by_std=False)
    torch.testing.assert_close(centred, REWARDS - 0.8125)
    # six deviations of .1875, one of -.8125, one of -.3125: squares sum to .96875, over 7: .1383929
    scaled = group_advantages(REWARDS, batch_statistics(REWARDS))
    torch.testing.assert_close(scaled, (REWARDS - 0.8125) / (0.1383929**0.5 + 1e-6), rtol=1e-5, atol=0)


def test_an_outcome_lands_on_the_last_decision_whatever_the_padding_and_gaps() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    placed = on_last_decision(torch.tensor([2.0, 3.0, -1.0, torch.nan]), mask)
    assert placed.tolist() == [[0, 2, 0, 0], [0, 0, 0, 3], [0, 0, 0, -1], [0, 0, 0, 0]]


def test_float64_rewards_keep_their_precision() -> None:
    rewards = REWARDS.double()
    assert advantages(rewards).dtype == torch.float64
    assert whiten(spread_over_tokens(rewards, MASK), MASK).dtype == torch.float64
