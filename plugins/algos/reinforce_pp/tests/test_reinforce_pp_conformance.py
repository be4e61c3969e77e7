"""REINFORCE++ passes the conformance kit, as it comes and with its options on."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks

OPTIONS = {
    "baseline": "group",
    "group_size": 4,
    "kl_coef": 0.5,
    "kl_target": 0.05,
    "kl_horizon": 100,
    "entropy_coef": 0.01,
}


@parametrize_with_checks("algorithms", "reinforce_pp")
def test_reinforce_pp_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "reinforce_pp", config=OPTIONS)
def test_reinforce_pp_with_a_group_baseline_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "reinforce_pp", config={"kl_in": "both", "gamma": 0.9, "kl_coef": 0.1})
def test_reinforce_pp_with_the_kl_in_both_places_conforms(check: Callable[[], None]) -> None:
    check()
