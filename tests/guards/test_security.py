"""What SECURITY.md promises has tests, and no file opens a way around it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rlinf_core.report import serve

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)")
PROMISES = (
    (ROOT / "SECURITY.md").read_text().partition("## What is promised")[2].partition("## What is not")[0]
)
ROWS = [line for line in PROMISES.splitlines() if line.startswith("| ") and "test" in line][1:]
SOURCES = [
    path
    for folder in ("rlinf_core", *(str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/*/*/rlinf_*")))
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_tests_that_exist(row: str) -> None:
    found = NAMED.findall(row)
    assert found, "a promise without a test"
    for file, names in found:
        defined = {
            node.name
            for node in ast.parse((ROOT / file).read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        assert set(re.findall(r"`(\w+)`", names)) <= defined, file


def test_promises_are_found() -> None:
    assert len(ROWS) >= 8


@pytest.mark.parametrize(
    ("call", "argument", "value", "default"),
    [("torch.load", "weights_only", "True", ""), ("np.load", "allow_pickle", "False", "False")],
)
def test_files_are_read_without_running_what_is_in_them(
    call: str, argument: str, value: str, default: str
) -> None:
    loose = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == call:
                given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                if given.get(argument, default) != value and "testing" not in path.parts:
                    loose.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert loose == []


@pytest.mark.parametrize("words", ["shell=True", "os.system(", "yaml.load(", "yaml.unsafe_load", "0.0.0.0"])
def test_no_source_has(words: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in SOURCES if words in path.read_text()] == []


def test_pages_are_served_to_this_machine_alone() -> None:
    assert serve.HOST == "127.0.0.1"
