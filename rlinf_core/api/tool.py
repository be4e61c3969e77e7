"""The tool interface: what a language model may call while it responds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Tool(ABC):
    """Something that a model may call. Constructed with its config dataclass, in the process that generates.

    `parameters` is a JSON schema of an object. Formats without names of arguments give the whole text of a
    call to the first of its properties.
    """

    parameters: Mapping[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}}
    name: str = ""  # as the model calls it; "" = as the plugin is called
    description: str = ""  # for the model; "" = the plugin's summary
    instant: bool = False  # takes microseconds: called where it is needed, without a thread and a deadline

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    @abstractmethod
    def call(self, arguments: Mapping[str, Any]) -> str:
        """What the model reads. Calls come from several threads, unless the tool is `instant`. The same
        arguments give the same text, if runs are to be repeatable. Raises `ToolError` with what the model
        should read of a mistake of its own."""

    def close(self) -> None:
        """End what the tool has started; called once."""
