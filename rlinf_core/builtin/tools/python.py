"""Python programs of the model, each in a process of its own with few rights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_core.api.tool import Tool
from rlinf_core.builtin.sandbox import Sandbox
from rlinf_core.builtin.tools.config import PythonToolConfig
from rlinf_core.errors import ToolError


class Python(Tool):
    """Answers with what a program prints. Nothing is kept from one call to the next."""

    config: PythonToolConfig
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "a program that prints its result"}},
        "required": ["code"],
    }
    description = "Runs a Python program without network and files, and answers with what it prints"

    def __init__(self, config: PythonToolConfig) -> None:
        super().__init__(config)
        self._sandbox = Sandbox(config.memory_mb)
        self._checked = False

    def call(self, arguments: Mapping[str, Any]) -> str:
        """What was printed; raises `ToolError` with the end of the traceback."""
        if not self._checked:
            self._sandbox.check("tool python")
            self._checked = True
        ran = self._sandbox.run([str(arguments["code"])], timeout_s=self.config.timeout_s)
        if not ran.whole:
            raise ToolError((ran.output + ran.complaint).strip() or "the program ended before its end")
        return ran.output.rstrip("\n")
