"""The LIBERO simulator passes the conformance kit in its own environment, with and without pictures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_core.testing import parametrize_with_checks


@pytest.mark.slow
@parametrize_with_checks("simulators", "libero", isolated=True)
def test_one_task_conforms(check: Callable[[], None]) -> None:
    check()
