"""Reads the fields of a settings dataclass with their types, defaults and trailing comments."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class FieldInfo:
    """One setting. `default` is `dataclasses.MISSING` where the user has to give a value."""

    name: str
    type: str  # as the source writes it: "float | None"
    default: Any
    doc: str  # the trailing comment, or ""

    @property
    def required(self) -> bool:
        return self.default is MISSING


def describe(cls: type) -> list[FieldInfo]:
    """The settings of a dataclass in order, those of its bases included.

    ```python
    @dataclass(frozen=True)
    class TinyConfig:
        depth: int = 2  # layers
    describe(TinyConfig)  # [FieldInfo(name="depth", type="int", default=2, doc="layers")]
    ```
    """
    if not is_dataclass(cls):
        return []
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _comments(base)
    return [
        FieldInfo(item.name, _type_text(item.type), _default(item), docs.get(item.name, ""))
        for item in fields(cls)
        if item.init
    ]


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _default(item: Any) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _comments(cls: type) -> dict[str, str]:
    """Field name -> the comments on the lines of its statement. A class without source has none."""
    if not is_dataclass(cls):
        return {}
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    by_line = {
        token.start[0]: token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:"))
    }
    found: dict[str, str] = {}
    body = ast.parse(source).body[0]
    for node in body.body if isinstance(body, ast.ClassDef) else []:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = " ".join(by_line[line] for line in lines if line in by_line)
    return found
