"""What plugin authors write against is documented: every hook, every interface method."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlinf_core.api
from rlinf_core.plugins import hookspecs
from rlinf_core.plugins.kinds import SPECS

HOOKS = {name: item for name, item in vars(hookspecs).items() if name.startswith("rlinf_")}
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _interfaces() -> Iterator[type]:
    """Every public class that a module of `rlinf_core.api` defines."""
    for found in pkgutil.iter_modules(rlinf_core.api.__path__, "rlinf_core.api."):
        module = importlib.import_module(found.name)
        for name, item in vars(module).items():
            if inspect.isclass(item) and item.__module__ == module.__name__ and not name.startswith("_"):
                yield item


INTERFACES = sorted(_interfaces(), key=lambda each: each.__qualname__)


def test_every_kind_of_plugin_has_its_hook():
    assert {f"rlinf_register_{kind}" for kind in SPECS} == {name for name in HOOKS if "_register_" in name}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_a_docstring_with_an_example_that_implements_it(name):
    examples = EXAMPLE.findall(inspect.getdoc(HOOKS[name]) or "")
    assert len(examples) == 1
    implemented = [
        node
        for node in ast.walk(ast.parse(examples[0]))
        if isinstance(node, ast.FunctionDef)
        and "hookimpl" in [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    ]
    assert [node.name for node in implemented] == [name]
    taken = {argument.arg for argument in implemented[0].args.args}
    assert taken <= set(inspect.signature(HOOKS[name]).parameters)


@pytest.mark.parametrize("name", [name for name in HOOKS if "_register_" in name])
def test_a_registering_example_gives_fields_that_the_spec_has(name):
    (example,) = EXAMPLE.findall(inspect.getdoc(HOOKS[name]) or "")
    spec = SPECS[name.removeprefix("rlinf_register_")]
    calls = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == spec.__name__]
    assert len(made) == 1
    assert {keyword.arg for keyword in made[0].keywords} <= set(spec.__dataclass_fields__)


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda each: each.__name__)
def test_an_interface_and_its_methods_are_documented(interface):
    assert inspect.getdoc(interface)
    own = [item for item in vars(interface).items() if not item[0].startswith("_")]
    methods = [(name, item) for name, item in own if inspect.isfunction(item) or isinstance(item, property)]
    assert [name for name, item in methods if not item.__doc__] == []


def test_the_rooms_of_the_design_page_are_those_of_the_core():
    core = Path(rlinf_core.api.__file__).parents[1]
    page = (core.parent / "docs/design.md").read_text().partition("## 3.")[0]
    tree = page.split("```text\n")[1].partition("```")[0].partition("plugins/\n  algos/")[0]
    files = set(re.findall(r"\b[a-z_]+\.py\b", tree))
    assert files - {path.name for path in core.rglob("*.py")} == set()
    rooms = {path.parent.name for path in core.glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in page} == set()
