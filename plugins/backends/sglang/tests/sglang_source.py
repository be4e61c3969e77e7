"""Reads SGLang's source without importing it, which needs a CUDA device: what it takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Taken:
    """Parameters of a function, without `self`."""

    names: tuple[str, ...]
    required: frozenset[str]
    anything: bool  # it has **kwargs


def function(path: Path, name: str, owner: str = "") -> Function:
    """A function of a file, or of a class there. Raises `LookupError` if it is not there."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    if owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    for node in body:
        if isinstance(node, Function) and node.name == name:
            return node
    raise LookupError(f"{path} has no {owner}.{name}")


def taken(found: Function) -> Taken:
    """What it takes."""
    spec = found.args
    plain = [argument.arg for argument in [*spec.posonlyargs, *spec.args]]
    without = plain[: len(plain) - len(spec.defaults)]
    without += [a.arg for a, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value is None]
    names = [*plain, *(argument.arg for argument in spec.kwonlyargs)]
    ignored = {"self", "cls"}
    return Taken(
        tuple(name for name in names if name not in ignored),
        frozenset(without) - ignored,
        spec.kwarg is not None,
    )


def class_fields(path: Path) -> set[str]:
    """Annotated names in the bodies of a file's classes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            found |= {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
    return found


def calls(path: Path, owner: str) -> Iterator[tuple[str, int, frozenset[str]]]:
    """Methods that a file calls of what ends with `owner`, such as "self.engine": name, how many arguments
    by position, and which by keyword."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = ast.unparse(node.func.value)
            if receiver == owner or receiver.endswith(f".{owner}"):
                words = frozenset(each.arg for each in node.keywords if each.arg)
                yield node.func.attr, len(node.args), words
