"""Every hook and every method of the interfaces is in the reference, and implemented where one can look."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_core.plugins import hookspecs

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT / "tests/cli"))
from docs_blocks import blocks_of, pages  # noqa: E402
from test_documented import HOOKS, INTERFACES  # noqa: E402

REFERENCE = set(re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text(), re.MULTILINE))
TUTORIALS = [
    block
    for page in pages()
    for block in blocks_of(page)
    if page.startswith("docs/plugin-") and block.language == "python"
]
SHIPPED = ("plugins/*/*/rlinf_*/**/*.py", "rlinf_core/**/*.py")  # the core has simulators, engines, rewards


def _trees() -> Iterator[ast.Module]:
    for glob in SHIPPED:
        for path in ROOT.glob(glob):
            if path.parent != ROOT / "rlinf_core/api":
                yield ast.parse(path.read_text())
    yield from (ast.parse(block.body) for block in TUTORIALS)


def _bases_and_members() -> dict[str, tuple[set[str], set[str]]]:
    """Of every class by name: the names of its bases, and what it defines."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for node in (node for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        bases, members = found.setdefault(node.name, (set(), set()))
        bases |= {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
        members |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


CLASSES = _bases_and_members()


def _implemented(interface: str) -> set[str]:
    """What classes that inherit from it, however far down, define."""
    family, before = {interface}, set[str]()
    while family != before:
        before = set(family)
        family |= {name for name, (bases, _) in CLASSES.items() if bases & family}
    return {member for name in family & CLASSES.keys() for member in CLASSES[name][1]}


def _hooks_shown() -> set[str]:
    functions = (node for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {
        node.name for node in functions if "hookimpl" in {ast.unparse(each) for each in node.decorator_list}
    }


ABSTRACT = [each for each in INTERFACES if inspect.isabstract(each)]


def test_the_interfaces_are_found():
    names = {each.__name__ for each in ABSTRACT}
    assert {"Algorithm", "TrainBackend", "Trainer", "RolloutEngine", "Model", "Simulator", "Host"} <= names
    assert {"Engine", "Reward", "Dataset", "Tracker", "Decoder", "TextProcessor"} <= names


def test_every_hook_is_in_the_reference_and_in_a_plugin_that_ships_or_a_tutorial():
    assert hookspecs.__name__ in REFERENCE
    assert set(HOOKS) - _hooks_shown() == set()


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda each: each.__name__)
def test_an_interface_is_in_the_reference(interface):
    assert interface.__module__ in REFERENCE, f"add ::: {interface.__module__} to docs/reference.md"


@pytest.mark.parametrize("interface", ABSTRACT, ids=lambda each: each.__name__)
def test_every_method_is_implemented_by_a_plugin_that_ships_or_a_tutorial(interface):
    own = [name for name, item in vars(interface).items() if not name.startswith("_")]
    methods = {name for name in own if callable(getattr(interface, name)) or _is_property(interface, name)}
    assert methods - _implemented(interface.__name__) == set()


def _is_property(interface: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(interface, name), property)


@pytest.mark.parametrize("interface", ABSTRACT, ids=lambda each: each.__name__)
def test_every_method_that_must_be_implemented_is_on_a_page(interface):
    written = "".join(path.read_text() for path in ROOT.glob("docs/*.md"))
    must = {name for name in interface.__abstractmethods__ if not name.startswith("_")}
    unsaid = {name for name in must if not re.search(rf"`(?:[\w.]+\.)?{name}\b", written)}
    assert unsaid == set(), f"say what {interface.__name__} asks on the page of its kind"


def _said() -> str:
    """Every text that the core may say, f-strings in their parts."""
    trees = (ast.parse(path.read_text()) for path in ROOT.glob("rlinf_core/**/*.py"))
    texts = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


def test_the_errors_that_tutorials_explain_are_said_somewhere():
    said, asked = _said(), []
    for page in sorted((ROOT / "docs").glob("plugin-*.md")):
        table = page.read_text().partition("## Common errors")[2]
        asked += [(page.name, text) for text in re.findall(r"^\| `([^`]+)` \| ", table, re.MULTILINE)]
    assert len(asked) > 20
    assert [(page, text) for page, text in asked if text not in said] == []


def test_a_class_far_down_counts_as_an_implementation(monkeypatch):
    monkeypatch.setitem(CLASSES, "Above", ({"Reward"}, {"one"}))
    monkeypatch.setitem(CLASSES, "Below", ({"Above"}, {"two"}))
    monkeypatch.setitem(CLASSES, "Beside", ({"Other"}, {"three"}))
    assert {"one", "two"} <= _implemented("Reward")
    assert "three" not in _implemented("Reward")
