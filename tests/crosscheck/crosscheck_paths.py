"""Where the documentation of the crosscheck is, and the peers."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "crosscheck.md"


def peer(name: str) -> ModuleType:
    """What runs a peer's own code; a skip where it is not installed."""
    if find_spec(name) is None:
        pytest.skip("needs the peers (make crosscheck)")
    return importlib.import_module(f"crosscheck_{name}")
