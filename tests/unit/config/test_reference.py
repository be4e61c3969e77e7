"""The documentation holds the settings as they are."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.config.show import settings_table

DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_documented_table_is_the_schema():
    text = DOCS.read_text()
    start = text.index("| key |")
    documented = text[start : text.index("\n\n", start) + 1]
    assert documented == settings_table(), "print it anew by `python -m rlinf_core.config.show`"
