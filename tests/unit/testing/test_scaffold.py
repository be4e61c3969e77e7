"""Every scaffolded plugin passes the checks of its kind as generated."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.plugins import Offer, PluginManager
from rlinf_core.plugins.kinds import SPECS
from rlinf_core.testing.checks import run_checks
from rlinf_core.testing.scaffold import scaffold
from rlinf_core.testing.subject import subject


@pytest.mark.parametrize("kind", list(SPECS))
def test_a_new_plugin_of_every_kind_passes_its_checks(kind, tmp_path, monkeypatch):
    made = scaffold(kind, "fresh", tmp_path)
    package = next(path.name for path in made.iterdir() if path.name.startswith("rlinf_"))
    monkeypatch.syspath_prepend(str(made))
    offer = Offer("fresh", made.name, "0.1.0", lambda: importlib.import_module(f"{package}.plugin"))
    manager = PluginManager(lambda asked: [offer] if asked == kind else [])
    results = list(run_checks(subject(kind, "fresh", manager=manager)))
    assert {result.name: result.message for result in results if result.outcome == "failed"} == {}
    assert sum(result.outcome == "passed" for result in results) >= 4


def test_scaffolded_code_is_clean(tmp_path):
    for kind in SPECS:
        scaffold(kind, "my_thing", tmp_path)
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--line-length",
        "110",
        "--select",
        "E,F,UP,B",
        str(tmp_path),
    ]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["My", "1a", "a-b", "class", ""])
def test_names_that_python_cannot_import_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot be a package"):
        scaffold("rewards", name, tmp_path)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    made = scaffold("rewards", "mine", tmp_path)
    (made / "README.md").write_text("kept")
    with pytest.raises(ConfigError, match="exists already"):
        scaffold("rewards", "mine", tmp_path)
    assert (made / "README.md").read_text() == "kept"
