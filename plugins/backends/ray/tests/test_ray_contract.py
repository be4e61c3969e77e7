"""The engine keeps the contract of execution engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_core.testing import parametrize_with_checks


@pytest.mark.usefixtures("ray_here")
@parametrize_with_checks("engines", "ray")
def test_ray_keeps_the_contract(check: Callable[[], None]) -> None:
    check()
