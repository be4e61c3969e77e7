"""Values on a mask, whatever stands off it."""

from __future__ import annotations

import torch

from rlinf_core.rl.masks import kept


def test_what_is_off_the_mask_is_0_and_gets_no_gradient_even_where_it_is_no_number() -> None:
    values_BT = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], requires_grad=True)
    mask_BT = torch.tensor([[True, False], [True, True]])
    on_BT = kept(values_BT, mask_BT)
    on_BT.sum().backward()
    assert on_BT.tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert values_BT.grad is not None
    assert values_BT.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_without_a_mask_values_are_themselves_and_leading_axes_may_be_more() -> None:
    stacked_MBT = torch.arange(4.0).view(2, 1, 2)
    assert kept(stacked_MBT, None) is stacked_MBT
    assert torch.equal(kept(stacked_MBT, torch.tensor([[True, True]])), stacked_MBT)
    assert kept(stacked_MBT, torch.tensor([[True, False]])).tolist() == [[[0.0, 0.0]], [[2.0, 0.0]]]
