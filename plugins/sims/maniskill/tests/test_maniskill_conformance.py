"""The ManiSkill simulator passes the conformance kit in its own environment, through worker processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_core.testing import parametrize_with_checks


@pytest.mark.slow
@parametrize_with_checks("simulators", "maniskill", isolated=True)
def test_pushing_a_cube_conforms(check: Callable[[], None]) -> None:
    check()
