"""Trainings that are compared by the conformance kit differ by no more than they may."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_core.testing.ranks import expect_same_training


def training(norm: float = 1.0, weight: float = 3.0, value: float = 2.0) -> dict[str, Any]:
    weights = {"a": torch.tensor([weight, 4.0])}  # of norm 5
    return {"norms": [norm, 2.0], "weights": weights, "outputs": {"values_BT": torch.tensor([[value]])}}


def test_differences_within_the_bounds_pass() -> None:
    near = training(norm=1.00009, weight=3.00009, value=2.00009)
    expect_same_training(near, training(), gap=2e-5)


@pytest.mark.parametrize("part", [{"norm": 1.0002}, {"weight": 3.0002}, {"value": 2.0005}])
def test_each_part_beyond_its_bound_fails(part: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        expect_same_training(training(**part), training(), gap=2e-5)


def test_weights_of_other_names_fail() -> None:
    got = training()
    got["weights"] = {"b": got["weights"]["a"]}
    with pytest.raises(AssertionError, match=r"weights \['b'\], expected \['a'\]"):
        expect_same_training(got, training(), gap=1.0)
