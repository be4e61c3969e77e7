"""The plugin of faults can be named, here and in every process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_core.plugins import plugins

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(HERE / "plugin"))
    plugins.cache_clear()
    yield
    plugins.cache_clear()
