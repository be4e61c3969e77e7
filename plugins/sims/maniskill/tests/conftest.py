"""ManiSkill's own environment, for the tests that are slow anyhow."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.isolation import build, child_environment
from rlinf_core.plugins import plugins

Inside = Callable[..., dict[str, Any]]
WriteAssets = Callable[..., Path]


@pytest.fixture(scope="session")
def maniskill_python() -> Path:
    """The Python of ManiSkill's environment, which is built if it is not there."""
    return build(plugins().get("simulators", "maniskill")).python


@pytest.fixture(autouse=True)
def _built(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("maniskill_python")


@pytest.fixture(scope="session")
def inside(maniskill_python: Path) -> Inside:
    """Runs a script of this folder there; returns what it prints last, as JSON."""

    def run(script: str, *arguments: str, **variables: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(maniskill_python), str(Path(__file__).with_name(script)), *arguments],
            env=child_environment(plugins().get("simulators", "maniskill")) | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.fixture(scope="session")
def write_assets() -> WriteAssets:
    """Writes boxes and trays for the put-on-plate tasks into a folder."""
    found: WriteAssets = runpy.run_path(str(Path(__file__).with_name("standins.py")))["write_assets"]
    return found
