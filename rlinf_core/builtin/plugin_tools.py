"""Registers the tools that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.tools import config
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import ToolSpec

_ROOM = "rlinf_core.builtin.tools"


@hookimpl
def rlinf_register_tools() -> list[ToolSpec]:
    """Offer what needs no service."""
    return [
        ToolSpec(
            name="calculator",
            summary="Expressions of numbers",
            target=f"{_ROOM}.calculator:Calculator",
            config=config.CalculatorConfig,
        ),
        ToolSpec(
            name="python",
            summary="Python programs, run without network, files or much memory",
            target=f"{_ROOM}.python:Python",
            config=config.PythonToolConfig,
        ),
        ToolSpec(
            name="search",
            summary="Passages of a local collection, found by BM25",
            target=f"{_ROOM}.search:Search",
            config=config.SearchConfig,
        ),
        ToolSpec(
            name="mcp",
            summary="A tool of a server that speaks the Model Context Protocol",
            target=f"{_ROOM}.mcp:Mcp",
            config=config.McpConfig,
        ),
    ]
