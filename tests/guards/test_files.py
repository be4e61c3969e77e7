"""Rules for every file: its size, its first line, and that it holds for any machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 400
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|Users|work|tmp)/[\w.-]+")


def _tracked() -> list[Path]:
    """What git tracks; without git (an unpacked archive), all files that are no build result."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and not _made(path)]
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _made(path: Path) -> bool:
    first = path.relative_to(ROOT).parts[0]
    return (
        first.startswith(".venv") or first in ("site", "build", "dist", "runs") or "__pycache__" in path.parts
    )


TRACKED = _tracked()
PYTHON = [path for path in TRACKED if path.suffix == ".py"]
SOURCES = [path for path in PYTHON if "tests" not in path.relative_to(ROOT).parts]


def _named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_the_files_are_found():
    assert ROOT / "rlinf_core/errors.py" in SOURCES
    assert Path(__file__).name not in {path.name for path in SOURCES}


def test_no_python_file_is_longer_than_400_lines():
    assert _named([path for path in PYTHON if len(path.read_text().splitlines()) > MOST_LINES]) == []


def test_every_module_starts_with_a_docstring():
    undocumented = [path for path in SOURCES if path.stat().st_size and not ast.get_docstring(_tree(path))]
    assert _named(undocumented) == []


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("path", ["/home/me/x", "cd /work/here", '"/tmp/a"', "file:///root/x.py"])
def test_a_machine_path_is_recognised(path):
    assert MACHINE_PATH.search(path)


@pytest.mark.parametrize("path", ["~/work/x", "docs/work/x", "runs/tmp/x", "/backup/step_1", "$HOME/tmp/x"])
def test_other_paths_are_none(path):
    assert not MACHINE_PATH.search(path)


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    found = []
    for path in TRACKED:
        if path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # pictures and the like
        found += [(str(path.relative_to(ROOT)), match.group()) for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_every_plugin_distribution_is_complete():
    for manifest in ROOT.glob("plugins/*/*/pyproject.toml"):
        project = tomllib.loads(manifest.read_text())["project"]
        package = project["name"].replace("-", "_")
        assert any(line.startswith("rlinf-core") for line in project["dependencies"]), manifest
        for part in ("README.md", f"{package}/__init__.py", f"{package}/plugin.py", "tests"):
            assert (manifest.parent / part).exists(), f"{manifest.parent} lacks {part}"
