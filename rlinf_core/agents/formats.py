"""How a model writes calls of tools, and how it reads their results where no chat template says so."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FormatName = Literal["json", "tags"]
MARKS = ("<{name}>", "</{name}>", "<result>", "</result>")


@dataclass(frozen=True)
class ToolCall:
    """One call, or why what was written is none."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class Format(ABC):
    """`first` maps the name of each tool to its first argument; `marks` are of the format `tags`."""

    def __init__(self, first: Mapping[str, str], marks: Sequence[str] = MARKS) -> None:
        self.first = first
        self.marks = marks

    def of(self, tools: Sequence[Mapping[str, Any]]) -> Format:
        """The same for other tools, which are described as chat templates take them."""
        return type(self)(first_arguments(tools), self.marks)

    @property
    @abstractmethod
    def begins(self) -> tuple[str, ...]:
        """Texts that begin a call."""

    @property
    @abstractmethod
    def stops(self) -> tuple[str, ...]:
        """Texts that end a call."""

    @abstractmethod
    def calls(self, text: str) -> list[ToolCall]:
        """Those that a turn of the model makes, in order."""

    def before(self, text: str) -> str:
        """What a turn says before its first call."""
        return text[: min([text.find(begin) for begin in self.begins if begin in text], default=len(text))]

    @abstractmethod
    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model is to write it."""

    @abstractmethod
    def read(self, results: Sequence[str]) -> str:
        """Results as the model reads them within its turn."""


class JsonFormat(Format):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen models write calls."""

    begin = "<tool_call>"
    end = "</tool_call>"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.end,)

    def calls(self, text: str) -> list[ToolCall]:
        found = re.findall(f"{self.begin}(.*?){self.end}", text, re.DOTALL)
        return [self._call(each.strip()) for each in found]

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        told = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"{self.begin}\n{told}\n{self.end}"

    def read(self, results: Sequence[str]) -> str:
        return "".join(f"\n<tool_response>\n{result}\n</tool_response>\n" for result in results)

    def _call(self, text: str) -> ToolCall:
        try:
            told = json.loads(text)
        except (ValueError, RecursionError) as err:
            return ToolCall("", problem=f"a call is a JSON object: {err}")
        if not isinstance(told, dict) or not isinstance(told.get("name"), str):
            return ToolCall("", problem='a call is a JSON object with "name" and "arguments"')
        arguments = told.get("arguments", {})
        if not isinstance(arguments, dict):
            return ToolCall(told["name"], problem='"arguments" is a JSON object')
        return ToolCall(told["name"], arguments)


class TagFormat(Format):
    """`<calculator>2+3</calculator>`, or other `marks`: what stands before and behind a call, and before and
    behind a result. Short enough for small models without a chat template."""

    def __init__(self, first: Mapping[str, str], marks: Sequence[str] = MARKS) -> None:
        super().__init__(first, marks)
        begin, end, self._before, self._behind = marks
        self._ends = {name: (begin.format(name=name), end.format(name=name)) for name in first}

    @property
    def begins(self) -> tuple[str, ...]:
        return tuple(begin for begin, _ in self._ends.values())

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(end for _, end in self._ends.values()))

    def calls(self, text: str) -> list[ToolCall]:
        found = [
            (each.start(), ToolCall(name, {self.first[name]: each[1]}))
            for name, (begin, end) in self._ends.items()
            for each in re.finditer(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)
        ]
        return [call for _, call in sorted(found, key=lambda each: each[0])]

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        begin, end = self._ends.get(name, ("", ""))
        return f"{begin}{arguments.get(self.first.get(name, ''), '')}{end}"

    def read(self, results: Sequence[str]) -> str:
        return "".join(f"{self._before}{result}{self._behind}" for result in results)


FORMATS: Mapping[FormatName, type[Format]] = {"json": JsonFormat, "tags": TagFormat}


def first_arguments(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of each tool by name; "" for one without arguments. Other things than functions are left out."""
    found: dict[str, str] = {}
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            known = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[function["name"]] = next(iter(known), "") if isinstance(known, Mapping) else ""
    return found
