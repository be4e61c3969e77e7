"""The directory of plugins lists ours as they are, and the compatibility policy is that of the code.

`python tests/guards/test_directory.py` writes the list anew.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import SPECS, short
from rlinf_core.plugins.specs import API_VERSION, PluginSpec

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docs/directory.md"
PAGE = PATH.read_text()
BEGIN, END = "<!-- ours -->\n", "<!-- end of ours -->\n"


def _ours() -> Iterator[tuple[str, str, str]]:
    """Kind, name and distribution of every plugin of this repository."""
    for manifest in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/*/pyproject.toml"))]:
        project = tomllib.loads(manifest.read_text())["project"]
        for group, offers in project["entry-points"].items():
            for name in offers if group.startswith("rlinf.") else ():
                yield group.removeprefix("rlinf."), name, project["name"]


def directory() -> str:
    """The tables, kind by kind."""
    text = ""
    for kind in SPECS:
        text += f"\n### {kind.capitalize()}\n\n| name | what it is | comes with |\n|---|---|---|\n"
        rows = sorted((name, distribution) for of, name, distribution in _ours() if of == kind)
        for name, distribution in rows:
            summary = plugins().get(kind, name).summary.replace("<", "&lt;")
            text += f"| `{name}` | {summary} | `{distribution}` |\n"
    return text + "\n"


def test_the_directory_lists_our_plugins_as_they_are():
    shown = PAGE.partition(BEGIN)[2].partition(END)[0]
    assert shown == directory(), "run python tests/guards/test_directory.py"


@pytest.mark.parametrize("kind", SPECS)
def test_the_names_of_distributions_are_those_of_the_template(kind):
    assert f"`rlinf-{short(kind)}-NAME`" in PAGE


def test_the_version_of_the_interface_is_that_of_the_page():
    assert f"The interface has version {API_VERSION}" in PAGE
    assert f"`{PluginSpec.api}`" in PAGE
    assert API_VERSION in SpecifierSet(PluginSpec.api)


def test_a_deprecation_has_a_date_half_a_year_before_its_end():
    table = PAGE.partition("## Deprecations")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `[^|]+ \| (\S+) \| (\S+) \|", table, re.MULTILINE)
    spans = [(date.fromisoformat(since), date.fromisoformat(until)) for since, until in rows]
    assert all((until - since).days >= 182 for since, until in spans)
    assert rows or "Nothing is deprecated" in table


if __name__ == "__main__":
    before, _, rest = PAGE.partition(BEGIN)
    PATH.write_text(f"{before}{BEGIN}{directory()}{END}{rest.partition(END)[2]}")
