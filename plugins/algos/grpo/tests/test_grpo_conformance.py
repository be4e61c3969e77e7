"""GRPO passes the conformance kit, as it comes and with its options on."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks

OPTIONS = {
    "group_size": 4,
    "clip_ratio_high": 0.28,
    "dual_clip": 3.0,
    "baseline": "leave-one-out",
    "loss_aggregation": "seq-mean-token-mean",
    "importance_level": "sequence",
    "kl_coef": 0.1,
    "kl_estimator": "k3-ratio",
    "entropy_coef": 0.01,
    "importance_cap": 2.0,
}


@parametrize_with_checks("algorithms", "grpo")
def test_grpo_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "grpo", config=OPTIONS)
def test_grpo_with_its_options_on_conforms(check: Callable[[], None]) -> None:
    check()
