"""The core names no plugin: neither in its identifiers nor in its strings; documentation may."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted(ROOT.glob("plugins/*/*/pyproject.toml"))
CORE = sorted((ROOT / "rlinf_core").rglob("*.py"))


def _offered_by(manifest: Path) -> set[str]:
    """What users type for the plugins of a distribution, and the packages behind those names."""
    groups = tomllib.loads(manifest.read_text())["project"]["entry-points"]
    offered = [
        pair for group, offers in groups.items() if group.startswith("rlinf.") for pair in offers.items()
    ]
    return {name for name, _ in offered} | {module.partition(".")[0] for _, module in offered}


def _offered_names() -> set[str]:
    """Of all plugins here, less what the core itself offers: a backend may share a dataset's name."""
    offered = set().union(*map(_offered_by, MANIFESTS))
    return offered - _offered_by(ROOT / "pyproject.toml")


NAMED = re.compile(rf"(?<![a-z0-9])({'|'.join(sorted(_offered_names()))})(?![a-z0-9])", re.IGNORECASE)


def _docstrings(tree: ast.Module) -> set[ast.Constant]:
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            found.add(first.value)
    return found


def words_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every identifier and string that is no docstring."""
    tree = ast.parse(source)
    documentation = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.lineno, node.value
        for attribute in ("id", "attr", "name", "arg", "module"):
            text = getattr(node, attribute, None)
            if isinstance(text, str):
                yield getattr(node, "lineno", 0), text


def named_plugins(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in words_of_code(source) if NAMED.search(text)]


def test_the_plugins_of_this_repository_are_known_here():
    assert {"grpo", "fsdp", "hf_lm", "mlp_policy", "rlinf_algo_grpo"} <= _offered_names()


def test_a_named_plugin_is_found_in_strings_and_identifiers_but_not_in_documentation():
    source = (
        '"""Like grpo."""\nif name == "grpo":\n    use_fsdp = grpo_loss\ntext = f"{x} of hf_lm"\nmlp = "hf"\n'
    )
    assert sorted(line for line, _ in named_plugins(source)) == [2, 3, 3, 4]


@pytest.mark.parametrize("path", CORE, ids=[str(path.relative_to(ROOT)) for path in CORE])
def test_a_core_module_names_no_plugin(path):
    assert named_plugins(path.read_text()) == []
