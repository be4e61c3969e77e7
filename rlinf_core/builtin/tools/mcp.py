"""A tool of a server that speaks the Model Context Protocol, over its standard streams or HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from rlinf_core.api.tool import Tool
from rlinf_core.builtin.tools.config import McpConfig
from rlinf_core.errors import ConfigError, ToolError
from rlinf_core.optional import require


class Mcp(Tool):
    """What the server answers as text. The server says how the tool is described and what it takes."""

    config: McpConfig

    def __init__(self, config: McpConfig) -> None:
        super().__init__(config)
        if bool(config.command) == bool(config.url):
            raise ConfigError("tool mcp: name a command that starts the server, or its url, and not both")
        library = require("mcp", "mcp", "tool mcp")
        portals = require("anyio.from_thread", "anyio", "tool mcp")
        server: Any = config.url or library.StdioServerParameters(
            command=config.command[0], args=list(config.command[1:]), env=dict(config.env) or None
        )
        self.name = config.tool
        self._open = contextlib.ExitStack()
        try:
            self._portal = self._open.enter_context(portals.start_blocking_portal())
            client = library.Client(server, read_timeout_seconds=config.start_s)
            self._client = self._open.enter_context(self._portal.wrap_async_context_manager(client))
            offered = {each.name: each for each in self._portal.call(self._client.list_tools).tools}
        except Exception as err:
            self._open.close()
            where = config.url or " ".join(config.command)
            raise ConfigError(f"tool mcp: the server {where!r} does not answer: {err}") from err
        if config.tool not in offered:
            self._open.close()
            raise ConfigError(
                f"tool mcp: the server has no tool {config.tool!r}; it has: {', '.join(offered)}"
            )
        self.description = offered[config.tool].description or config.tool
        self.parameters = offered[config.tool].input_schema

    def call(self, arguments: Mapping[str, Any]) -> str:
        """The texts of the answer; raises `ToolError` for what the server calls an error."""
        answer = self._portal.call(partial(self._client.call_tool, self.config.tool, dict(arguments)))
        text = "\n".join(part.text for part in answer.content if part.type == "text")
        if answer.is_error:
            raise ToolError(text)
        return text

    def close(self) -> None:
        """The server that was started ends."""
        self._open.close()
