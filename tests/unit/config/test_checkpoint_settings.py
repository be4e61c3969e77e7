"""Keeping the best checkpoint: which settings leave out evaluated steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlinf_core.config.check_checkpoint import checkpoint_warnings
from rlinf_core.config.schema import CheckpointConfig, Component, EvalConfig, RunConfig

PART = Component("", "", None)


def settings(saved: int, evaluated: int, metric: str) -> RunConfig:
    plain: Any = RunConfig(algo=PART, backend=PART, model=PART, engine=PART)
    return replace(
        plain,
        checkpoint=CheckpointConfig(every=saved, keep_best=metric),
        eval=EvalConfig(every=evaluated),
        origins={"checkpoint.keep_best": "job.yaml"},
    )


@pytest.mark.parametrize(
    ("saved", "evaluated", "metric", "warns"),
    [
        (20, 10, "eval/accuracy", False),
        (15, 10, "eval/accuracy", True),
        (15, 10, "-eval/length", True),
        (15, 0, "eval/accuracy", True),
        (0, 0, "eval/accuracy", False),
        (15, 10, "train/reward", False),
        (15, 10, "", False),
    ],
)
def test_saved_steps_that_are_not_evaluated_are_told(
    saved: int, evaluated: int, metric: str, warns: bool
) -> None:
    found = list(checkpoint_warnings(settings(saved, evaluated, metric)))
    assert bool(found) == warns
    if warns:
        assert f"checkpoint.every={saved} is no multiple of eval.every={evaluated}" in found[0]
        assert "job.yaml" in found[0]
