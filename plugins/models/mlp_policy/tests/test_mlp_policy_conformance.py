"""The perceptron policy passes the conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "mlp_policy")
def test_the_policy_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "mlp_policy", config={"chunk": 3, "value_head": "shared"})
def test_a_policy_of_chunks_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "mlp_policy", config={"chunk": 2, "std": "state", "squash": True})
def test_a_squashed_policy_whose_states_tell_deviations_conforms(check: Callable[[], None]) -> None:
    check()
