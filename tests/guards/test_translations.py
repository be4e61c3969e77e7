"""Translated pages show the code of the pages that they translate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRANSLATED = sorted((DOCS / "zh").glob("*.md"))
BLOCK = re.compile(r"^```\w.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.stem)
def test_a_translation_has_the_code_of_its_original(page: Path) -> None:
    original = BLOCK.findall((DOCS / page.name).read_text())
    shown = BLOCK.findall(page.read_text())
    assert shown
    assert [block for block in original if block in shown] == shown


def test_the_quickstart_is_translated_whole() -> None:
    headings = [
        re.findall(r"^#+ ", (DOCS / name).read_text(), re.MULTILINE) for name in ("index.md", "zh/index.md")
    ]
    assert headings[0] == headings[1]
    assert BLOCK.findall((DOCS / "index.md").read_text()) == BLOCK.findall((DOCS / "zh/index.md").read_text())
