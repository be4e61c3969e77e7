"""DAPO passes the conformance kit, as it comes and with its options on."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks

OPTIONS = {
    "group_size": 4,
    "overlong_buffer": 3,
    "overlong_penalty": 0.5,
    "mask_truncated": True,
    "kl_coef": 0.1,
    "kl_estimator": "k2",
    "entropy_coef": 0.01,
    "loss_aggregation": "seq-mean-token-sum-norm",
    "importance_cap": 2.0,
}


@parametrize_with_checks("algorithms", "dapo")
def test_dapo_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "dapo", config=OPTIONS)
def test_dapo_with_its_options_on_conforms(check: Callable[[], None]) -> None:
    check()
