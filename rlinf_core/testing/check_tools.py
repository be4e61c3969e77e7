"""Conformance checks of tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from rlinf_core.api import Tool
from rlinf_core.errors import ToolError
from rlinf_core.testing.subject import Subject, expect

TEXTS = ("", "1+1", "}{", "x" * 5000, "\x00\ud83d", "日本語")
VALUES: Mapping[str, Any] = {"string": "1+1", "number": 1.5, "integer": 1, "boolean": True, "array": []}


def check_tools_schema(subject: Subject) -> None:
    """`parameters` is a JSON schema of an object whose required properties exist."""
    tool = _built(subject)
    try:
        schema = json.loads(json.dumps(tool.parameters))
    except (TypeError, ValueError) as err:
        expect(False, f"parameters are no JSON: {err}")
        return
    known = schema.get("properties")
    expect(isinstance(known, dict) and known, "parameters have no properties; name what a call takes")
    strange = [name for name in schema.get("required", ()) if name not in known]
    expect(not strange, f"required names {', '.join(strange)}, which properties does not have")


def check_tools_answers(subject: Subject) -> None:
    """A call gives a text, or raises ToolError; whatever text the model gives."""
    tool = _built(subject)
    for text in TEXTS:
        answer = _called(tool, _arguments(tool, text))
        expect(isinstance(answer, str), f"a call gives a {type(answer).__name__}; give a text")


def check_tools_repeat(subject: Subject) -> None:
    """The same call gives the same text again, also in a new instance."""
    first, second = _built(subject), _built(subject)
    arguments = _arguments(first, "1+1")
    found = [_called(tool, arguments) for tool in (first, first, second)]
    expect(found[0] == found[1] == found[2], f"answers to the same call differ: {found}")


def check_tools_threads(subject: Subject) -> None:
    """Calls of several threads do not disturb each other."""
    tool = _built(subject)
    if tool.instant:
        return
    expected = _called(tool, _arguments(tool, "1+1"))
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(_called(tool, _arguments(tool, "1+1"))), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expect(found == [expected] * 4, f"four calls at once give {found}, one alone gives {expected!r}")


def _built(subject: Subject) -> Tool:
    tool: Tool = subject.build()
    return tool


def _arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Something for each argument; the text for those that are texts."""
    known: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    kinds = {name: schema.get("type", "string") for name, schema in known.items()}
    return {name: text if kind == "string" else VALUES.get(str(kind), {}) for name, kind in kinds.items()}


def _called(tool: Tool, arguments: Mapping[str, Any]) -> Any:  # Any: what it gives is looked at
    try:
        return tool.call(arguments)
    except ToolError as err:
        return f"error: {err}"
    except Exception as err:  # a tool may raise anything; its author wants the input
        expect(
            False,
            f"the call {dict(arguments)!r:.80} raises {type(err).__name__}: {err}; raise ToolError for what "
            "the model did wrong",
        )
        return ""
