"""The schedules of the learning rate, which all backends share."""

from __future__ import annotations

import pytest

from rlinf_core.api import OptimizerConfig


def test_the_schedules_have_the_values_computed_by_hand() -> None:
    cosine = OptimizerConfig(lr=1.0, schedule="cosine", warmup_steps=2, min_lr_ratio=0.1)
    assert [cosine.lr_at(step, 10) for step in (0, 1, 2, 6, 10, 12)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    )
    linear = OptimizerConfig(lr=2.0, schedule="linear")
    assert [linear.lr_at(step, 4) for step in range(6)] == pytest.approx([2, 1.5, 1, 0.5, 0, 0])
    assert OptimizerConfig(lr=1.0, warmup_steps=4).lr_at(0, 10) == 0.25
    assert OptimizerConfig(lr=1.0).lr_at(99, 10) == 1.0
