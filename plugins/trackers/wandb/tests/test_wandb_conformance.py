"""The tracker passes the conformance kit, which lets it reach no other machine."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("trackers", "wandb")
def test_the_tracker_conforms(check: Callable[[], None]) -> None:
    check()
