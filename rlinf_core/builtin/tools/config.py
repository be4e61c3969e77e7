"""Settings of the tools that ship with the core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CalculatorConfig:
    """Arithmetic of numbers."""

    digits: int = 12  # significant ones of results that are no whole numbers


@dataclass(frozen=True)
class PythonToolConfig:
    """Programs in a process without network, files of others or much memory."""

    timeout_s: float = 5.0  # of one program
    memory_mb: int = 512


@dataclass(frozen=True)
class SearchConfig:
    """The best passages of a collection, by BM25."""

    path: str = field(metadata={"path": True})  # JSON lines, or a folder of .txt and .md files
    text_key: str = "text"  # of JSON lines
    title_key: str = "title"  # of JSON lines; shown above a passage that has one
    results: int = 3  # passages of an answer
    max_chars: int = 1000  # of one passage


@dataclass(frozen=True)
class McpConfig:
    """One tool of a server that speaks the Model Context Protocol."""

    tool: str  # its name there
    command: tuple[str, ...] = ()  # that starts the server, which then talks by its standard streams
    url: str = ""  # of a server that runs (streamable HTTP); instead of a command
    env: Mapping[str, str] = field(default_factory=dict)  # of the command
    start_s: float = 30.0  # that the server may take to begin
