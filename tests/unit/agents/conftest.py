"""Tools of tests, and how a model calls them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from agent_parts import Adder, Ascii, Sleeper

from rlinf_core.agents.formats import FORMATS
from rlinf_core.agents.turns import Turns
from rlinf_core.api import Tool
from rlinf_core.plugins import NoConfig


@pytest.fixture
def tools() -> dict[str, Tool]:
    return {"add": Adder(NoConfig()), "sleep": Sleeper(NoConfig())}


@pytest.fixture
def turns() -> Turns:
    return Turns(Ascii(), FORMATS["tags"]({"add": "terms", "sleep": "seconds"}), "plain", 20)
