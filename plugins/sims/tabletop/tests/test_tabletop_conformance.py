"""The tabletop simulator passes the conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("simulators", "tabletop")
def test_the_simulator_conforms(check: Callable[[], None]) -> None:
    check()
