"""Policy losses and aggregations against hand-computed numbers."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from rlinf_core.errors import ConfigError
from rlinf_core.rl.aggregate import Aggregation, denominator, summed
from rlinf_core.rl.losses import clipped_policy_loss, log_ratio, sequence_log_ratio, weighted_policy_loss

NEW = torch.tensor([[1.6, 0.1, -0.5, 0.5]])
ADVANTAGES = torch.tensor([[-1.0, -1.0, -1.0, 1.0]])
VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 100.0, 100.0], [100.0, 100.0, 100.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)


def test_dual_clip_gives_the_reference_numbers() -> None:
    loss = clipped_policy_loss(NEW, ADVANTAGES, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert loss.loss_BT.mean().item() == pytest.approx(0.9062929, abs=1e-6)
    assert loss.clipped_BT.float().mean().item() == 0.5
    assert loss.dual_clipped_BT.float().mean().item() == 0.25


def test_without_a_dual_clip_a_large_ratio_on_a_bad_token_is_not_bounded() -> None:
    loss = clipped_policy_loss(NEW, ADVANTAGES, clip_low=0.2, clip_high=0.28)
    assert loss.loss_BT[0, 0].item() == pytest.approx(math.exp(1.6), rel=1e-6)
    assert not loss.dual_clipped_BT.any()


def test_clipped_tokens_have_no_gradient_and_the_others_have_ratio_times_advantage() -> None:
    new = NEW.clone().requires_grad_()
    clipped_policy_loss(new, ADVANTAGES, clip_low=0.2, clip_high=0.28, dual_clip=3.0).loss_BT.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, math.exp(0.1), 0.0, 0.0]]))


def test_extreme_ratios_stay_finite() -> None:
    far = torch.tensor([[500.0, -500.0]])
    for sign in (1.0, -1.0):
        loss = clipped_policy_loss(far, torch.full((1, 2), sign), clip_low=0.2, clip_high=0.2)
        assert torch.isfinite(loss.loss_BT).all()


def test_the_log_ratio_is_zero_off_the_mask_whatever_stands_there() -> None:
    new = torch.tensor([[0.5, torch.nan, torch.inf]], requires_grad=True)
    old = torch.tensor([[0.25, 1.0, -torch.inf]])
    mask = torch.tensor([[True, False, False]])
    ratio = log_ratio(new, old, mask)
    ratio.sum().backward()
    assert ratio.tolist() == [[0.25, 0.0, 0.0]]
    assert new.grad is not None
    assert new.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_without_old_logprobs_the_ratio_is_one_and_keeps_its_gradient() -> None:
    new = torch.tensor([[-0.3, -2.0]], requires_grad=True)
    ratio = log_ratio(new, None, torch.ones(1, 2, dtype=torch.bool)).exp()
    ratio.sum().backward()
    assert ratio.tolist() == [[1.0, 1.0]]
    assert new.grad is not None
    assert new.grad.tolist() == [[1.0, 1.0]]


def test_a_sequence_ratio_is_the_mean_log_ratio_at_every_trained_position() -> None:
    ratio = sequence_log_ratio(
        torch.tensor([[0.3, 0.0, 9.0], [0.0, 0.0, 0.0]]), MASK[[0, 2]] & torch.tensor([1, 1, 0]).bool()
    )
    torch.testing.assert_close(ratio, torch.tensor([[0.15, 0.15, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),
        ("token-sum", 10.0),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum", (6 + 4) / 2),
        ("seq-mean-token-sum-norm", (6 + 4) / 8 / 2),
    ],
)
def test_aggregations_equal_hand_computed_numbers_and_ignore_masked_rows(
    mode: Aggregation, expected: float
) -> None:
    assert summed(VALUES, MASK, mode, 8.0).item() / denominator(MASK, mode) == pytest.approx(expected)


@pytest.mark.parametrize("mode", get_args(Aggregation))
@pytest.mark.parametrize("parts", [[1, 2, 5], [0, 8], [8, 0], [3, 0, 5], [1] * 8])
def test_any_split_gives_the_same_gradient(mode: Aggregation, parts: list[int]) -> None:
    torch.manual_seed(0)
    mask = torch.rand(8, 6) < 0.6
    mask[3] = False
    whole = torch.randn(8, 6, requires_grad=True)
    (summed(whole.square(), mask, mode, 6.0) / denominator(mask, mode)).backward()
    split = whole.detach().clone().requires_grad_()
    for rows, chosen in zip(split.split(parts), mask.split(parts), strict=True):
        (summed(rows.square(), chosen, mode, 6.0) / denominator(mask, mode)).backward()
    torch.testing.assert_close(split.grad, whole.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", get_args(Aggregation))
def test_padding_changes_nothing_and_masked_values_are_never_read(mode: Aggregation) -> None:
    wide = torch.nn.functional.pad(VALUES, (0, 4), value=torch.nan)
    wide_mask = torch.nn.functional.pad(MASK, (0, 4), value=False)
    assert summed(wide, wide_mask, mode, 8.0) == summed(VALUES, MASK, mode, 8.0)
    assert denominator(wide_mask, mode) == denominator(MASK, mode)


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'mean' is not an aggregation; use one of token-mean"):
        denominator(MASK, "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", get_args(Aggregation))
def test_a_batch_without_a_trained_token_is_finite_with_zero_gradient(mode: Aggregation) -> None:
    values = torch.full((2, 3), torch.inf, requires_grad=True)
    total = summed(values, torch.zeros(2, 3, dtype=torch.bool), mode, 8.0)
    total.backward()
    assert total.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0] * 3] * 2


def test_cispo_bounds_the_weight_and_keeps_the_gradient_of_every_token() -> None:
    # ratios e^1.6, e^.1, e^-.5, e^.5 meet [.8, 1.28]: weights 1.28, e^.1, .8, 1.28
    logprobs = torch.tensor([[-1.0, -2.0, -3.0, -4.0]], requires_grad=True)
    loss = weighted_policy_loss(logprobs, NEW, ADVANTAGES, clip_low=0.2, clip_high=0.28)
    loss.loss_BT.sum().backward()
    torch.testing.assert_close(loss.loss_BT, torch.tensor([[-1.28, -2 * math.exp(0.1), -2.4, 5.12]]))
    torch.testing.assert_close(logprobs.grad, torch.tensor([[1.28, math.exp(0.1), 0.8, -1.28]]))
    assert loss.clipped_BT.tolist() == [[True, False, True, True]]
