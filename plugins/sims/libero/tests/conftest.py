"""LIBERO's own environment, for the tests that are slow anyhow."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.isolation import build
from rlinf_core.plugins import plugins


@pytest.fixture(scope="session")
def libero_python() -> Path:
    """The Python of LIBERO's environment, which is built if it is not there."""
    return build(plugins().get("simulators", "libero")).python


@pytest.fixture(autouse=True)
def _built(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("libero_python")
