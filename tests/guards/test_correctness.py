"""The page of guarantees names a test for each, and every test that it names exists and runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)")
GUARANTEES = 40


def _rows() -> list[tuple[int, str, str]]:
    page = (ROOT / "docs/correctness.md").read_text()
    return [(int(number), words, tests) for number, words, tests in ROW.findall(page)]


def _tests() -> list[tuple[int, str, str]]:
    """Number of the guarantee, file and function of every test that is named."""
    return [
        (number, file, name)
        for number, _, tests in _rows()
        for file, names in NAMED.findall(tests)
        for name in re.findall(r"`(\w+)`", names)
    ]


def test_every_guarantee_has_its_row_in_order():
    assert [number for number, _, _ in _rows()] == list(range(1, GUARANTEES + 1))


def test_every_row_says_something_of_its_own_and_names_tests_in_the_form_that_is_read():
    words = [said for _, said, _ in _rows()]
    assert len(set(words)) == GUARANTEES
    for number, _, tests in _rows():
        assert NAMED.sub("", tests).strip(" ;") == "", f"row {number} names tests in another form"
        assert NAMED.search(tests), f"row {number} names no test"


@pytest.mark.parametrize(("number", "file", "name"), _tests())
def test_a_named_test_exists_and_is_expected_to_pass(number, file, name):
    path = ROOT / file
    assert path.is_file(), f"row {number}: no file {file}"
    functions = {
        node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }
    assert name in functions, f"row {number}: {file} has no test {name}"
    marks = " ".join(ast.unparse(each) for each in functions[name].decorator_list)
    assert "xfail" not in marks
    assert "skip" not in marks


def test_the_page_is_in_the_navigation():
    assert "correctness.md" in (ROOT / "mkdocs.yml").read_text()
