"""Gradients of parts of a step: one sum, whatever the order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from rlinf_backend_fsdp.parts import Parts
from rlinf_backend_fsdp.world import World
from torch import Tensor

from rlinf_core.errors import ModelError

ALONE = World(0, 1, torch.device("cpu"))


def summed(parts: list[Tensor]) -> Tensor:
    gradient = torch.zeros_like(parts[0])
    sums = Parts([gradient])
    for part in parts:
        gradient.copy_(part)
        sums.close([gradient])
        assert not gradient.any(), "a part that was taken is forgotten"
    assert sums.closed == len(parts)
    sums.collect([gradient], ALONE)
    assert sums.closed == 0
    return gradient


def test_the_order_of_parts_changes_no_bit_where_float_sums_differ() -> None:
    random = torch.Generator().manual_seed(0)
    parts = [scale * torch.randn(1000, generator=random) for scale in (1e-3, 40.0, 1.0, 3e4)]
    orders = list(itertools.permutations(parts))
    assert len({tuple(sum(order).tolist()) for order in orders}) > 1  # type: ignore[arg-type,union-attr]
    expected = summed(parts)
    assert all(torch.equal(summed(list(order)), expected) for order in orders)
    exact = sum(part.double() for part in parts)
    assert isinstance(exact, Tensor)
    assert float((expected.double() - exact).norm() / exact.norm()) < 1e-7


def test_gradients_keep_all_that_float32_has_of_a_millionth_and_more() -> None:
    exact = [1.0 + 2**-23, -(2**-20) * (1 + 2**-23), 2.0**-44, 256.0 - 2**-16, 256.0 + 2**-15, -(2.0**40)]
    assert summed([torch.tensor(exact)]).tolist() == exact
    assert summed([torch.tensor([2.0**-46])]).tolist() == [0.0]
    assert summed([torch.tensor([2.0**-44])] * 3).tolist() == [3 * 2.0**-44]


def test_large_elements_and_small_ones_make_one_sum() -> None:
    parts = [
        torch.tensor([2.0**30, 0.25]),
        torch.tensor([-(2.0**30), 512.0]),
        torch.tensor([2.0**-30, 300.5]),
    ]
    for order in itertools.permutations(parts):
        assert summed(list(order)).tolist() == [2.0**-30, 812.75]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_part_that_is_not_finite_makes_the_whole_step_so(bad: float) -> None:
    assert summed([torch.tensor([1.0, bad]), torch.tensor([2.0, 3.0])]).isnan().all()


def test_more_than_whole_numbers_hold_is_refused_and_just_below_is_exact() -> None:
    below = 2.0**45 - 2.0**22
    assert summed([torch.tensor([below]), torch.tensor([-below]), torch.tensor([0.5])]).tolist() == [0.5]
    with pytest.raises(ModelError, match=r"may add up to 512 .*and 7\.04e\+13.*schedule\.dynamic=step"):
        summed([torch.tensor([2.0**45]), torch.tensor([-(2.0**45)])])
    with pytest.raises(ModelError, match=r"may add up to 2\.62e\+05 .*schedule\.chunk"):
        summed([torch.tensor([255.75])] * 1026)


def test_sums_begin_anew_after_a_step_and_when_they_are_forgotten() -> None:
    gradient = torch.tensor([2.0])
    sums = Parts([gradient])
    sums.close([gradient])
    sums.collect([gradient], ALONE)
    assert gradient.tolist() == [2.0]
    sums.close([gradient])
    sums.forget()
    assert sums.closed == 0
    gradient.fill_(3.0)
    sums.close([gradient])
    sums.collect([gradient], ALONE)
    assert gradient.tolist() == [3.0]


def test_bfloat16_gradients_are_rounded_once_at_the_end() -> None:
    parts = [torch.full((1,), 1.0, dtype=torch.bfloat16)] + [
        torch.full((1,), 2**-9, dtype=torch.bfloat16)
    ] * 64
    assert summed(parts).tolist() == [1.125]
