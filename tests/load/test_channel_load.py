"""Channels under load, small; `python benchmarks/channel_load.py` is the whole size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "channel_load.py"


def _run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_nothing_is_lost_and_deaths_are_named() -> None:
    result = _run("--items", "4000", "--gigabytes", "0.3", "--kills", "2")
    assert result["kills"] == 2
    assert result["slowest_error_s"] < 1
    assert result["shared_peak_mb"] < 2048


@pytest.mark.slow
def test_nothing_is_lost_in_many_items_and_many_deaths() -> None:
    result = _run("--items", "200000", "--gigabytes", "20", "--kills", "25")
    assert result["kills"] == 25
    assert result["slowest_error_s"] < 5
    assert result["shared_peak_mb"] < 2048
