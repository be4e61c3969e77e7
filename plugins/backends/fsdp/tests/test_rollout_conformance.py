"""The conformance checks that every rollout engine has to pass."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("rollouts", "hf")
def test_hf_conforms(check: Callable[[], None]) -> None:
    check()
