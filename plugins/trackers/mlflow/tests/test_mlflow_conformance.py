"""The tracker passes the conformance kit; slow, for every check makes a database."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_core.testing import parametrize_with_checks


@pytest.mark.slow
@parametrize_with_checks("trackers", "mlflow")
def test_the_tracker_conforms(check: Callable[[], None]) -> None:
    check()
