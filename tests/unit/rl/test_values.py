"""Value losses and explained variance against hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf_core.rl.values import explained_variance, value_loss

# The old value is 1 everywhere and the clip 0.2, so values beyond [0.8, 1.2] meet the clip.
OLD = torch.ones(1, 5)
VALUES = torch.tensor([[1.1, 1.5, 1.5, 0.5, 0.5]])
RETURNS = torch.tensor([[2.0, 2.0, 1.0, 0.0, 2.0]])


def test_the_larger_of_the_plain_and_the_clipped_error_counts() -> None:
    # .5 * .9^2; max(.5 * .5^2, .5 * .8^2); max(.5 * .5^2, .5 * .2^2); max(.5 * .5^2, .5 * .8^2); .5 * 1.5^2
    loss = value_loss(VALUES, OLD, RETURNS, clip=0.2, huber_delta=None)
    torch.testing.assert_close(loss.loss_BT, torch.tensor([[0.405, 0.32, 0.125, 0.32, 1.125]]))
    assert loss.clipped_BT.tolist() == [[False, True, False, True, False]]


def test_a_value_has_no_gradient_exactly_where_the_clip_decided() -> None:
    values = VALUES.clone().requires_grad_()
    value_loss(values, OLD, RETURNS, clip=0.2, huber_delta=None).loss_BT.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[-0.9, 0.0, 0.5, 0.0, -1.5]]))


def test_without_a_clip_the_error_is_half_the_square() -> None:
    loss = value_loss(VALUES, OLD, RETURNS, clip=None, huber_delta=None)
    torch.testing.assert_close(loss.loss_BT, 0.5 * (VALUES - RETURNS).square())
    assert not loss.clipped_BT.any()


def test_huber_is_linear_beyond_delta_on_both_branches() -> None:
    # delta .6.  .6 * (.9 - .3); clipped error .8: .6 * (.8 - .3); .5 * .5^2; as the second; .6 * (1.5 - .3)
    loss = value_loss(VALUES, OLD, RETURNS, clip=0.2, huber_delta=0.6)
    torch.testing.assert_close(loss.loss_BT, torch.tensor([[0.36, 0.3, 0.125, 0.3, 0.72]]))
    assert loss.clipped_BT.tolist() == [[False, True, False, True, False]]


def test_values_of_half_precision_have_a_float32_loss() -> None:
    loss = value_loss(VALUES.bfloat16(), OLD.bfloat16(), RETURNS, clip=0.2, huber_delta=None)
    assert loss.loss_BT.dtype == torch.float32


def test_explained_variance_equals_a_hand_computed_number() -> None:
    # Var(1, 2, 3, 4) = 1.25; residuals 0, 1, 0, -1 have variance .5
    returns, values = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0], [3.0, 5.0]])
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    assert explained_variance(values, returns, everywhere) == pytest.approx(1 - 0.5 / 1.25)
    assert explained_variance(returns + 7.0, returns, everywhere) == 1.0
    assert explained_variance(torch.full((2, 2), 9.0), returns, everywhere) == 0.0


def test_explained_variance_ignores_what_stands_off_the_mask() -> None:
    returns, values = torch.tensor([[1.0, 2.0, math.nan]]), torch.tensor([[1.0, 1.0, math.inf]])
    assert explained_variance(values, returns, torch.tensor([[True, True, False]])) == 0.0
    assert explained_variance(returns, returns, torch.tensor([[True, True, False]])) == 1.0


@pytest.mark.parametrize("rounding", [0.0, 1e-8])
def test_returns_that_are_all_equal_have_an_explained_variance_of_zero(rounding: float) -> None:
    returns = torch.full((2, 3), 0.1, dtype=torch.float64)
    returns[0, 0] += rounding
    everywhere = torch.ones(2, 3, dtype=torch.bool)
    assert explained_variance(torch.randn(2, 3), returns, everywhere) == 0.0
    assert explained_variance(returns, returns, ~everywhere) == 0.0
