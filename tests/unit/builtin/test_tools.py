"""What the tools of the core answer, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlinf_core.builtin.tools.calculator import Calculator
from rlinf_core.builtin.tools.config import CalculatorConfig, McpConfig, PythonToolConfig, SearchConfig
from rlinf_core.builtin.tools.mcp import Mcp
from rlinf_core.builtin.tools.python import Python
from rlinf_core.builtin.tools.search import Search
from rlinf_core.errors import ConfigError, ToolError
from rlinf_core.testing import parametrize_with_checks


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*48", "1776"),
        ("7/2", "3.5"),
        ("6/3", "2"),
        ("2^10 - 1", "1023"),
        ("-(3+4)*2", "-14"),
        ("17 // 5 + 17 % 5", "5"),
        ("sqrt(2)", "1.41421356237"),
        ("max(1, 2, 3) ÷ 3", "1"),
        ("10**21", "1000000000000000000000"),
        ("1e20", "1e+20"),
        ("0**0", "1"),
    ],
)
def test_a_calculator_calculates(expression: str, value: str) -> None:
    assert Calculator(CalculatorConfig()).call({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1/0", "division by zero"),
        ("9**9**9", "too large"),
        ("2**-9999999999", "too large"),
        ("10**29 * 10**29", "too large"),
        ("(-8)**0.5", "too large, or no real one"),
        ("sqrt(-1)", "math domain error"),
        ("__import__('os')", "is nothing to calculate with"),
        ("().__class__", "is nothing to calculate with"),
        ("True + 1", "'True' is nothing to calculate with"),
        ("1 +", "'1 \\+' is no expression of numbers"),
        ("(" * 150, "is no expression of numbers"),
        ("1+" * 200 + "1", "at most 200 characters"),
        ("3if 1else 4", "is nothing to calculate with"),
    ],
)
def test_what_is_nothing_to_calculate_is_told_to_the_model(expression: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        Calculator(CalculatorConfig()).call({"expression": expression})


@pytest.fixture
def python() -> Python:
    tool = Python(PythonToolConfig(timeout_s=5.0))
    try:
        tool.call({"code": "pass"})
    except ConfigError as err:
        pytest.skip(f"programs cannot be shut in on this system: {err}")
    return tool


def test_programs_answer_with_what_they_print(python: Python) -> None:
    assert python.call({"code": "for i in range(3):\n    print(i * i)"}) == "0\n1\n4"
    with pytest.raises(ToolError, match="NameError: name 'x' is not defined"):
        python.call({"code": "print(x)"})
    with pytest.raises(ToolError, match=r"took longer than 0\.5 s"):
        Python(PythonToolConfig(timeout_s=0.5)).call({"code": "while True: pass"})


def test_programs_reach_no_network(python: Python) -> None:
    with pytest.raises(ToolError, match=r"PermissionError|OSError"):
        python.call({"code": "import socket; socket.create_connection(('127.0.0.1', 80))"})


FACTS = [
    {"title": "France", "text": "The capital of France is Paris."},
    {"title": "Peru", "text": "The capital of Peru is Lima, on the coast."},
    {"text": "Whales are mammals."},
]


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(map(json.dumps, FACTS)))
    return path


def test_a_search_gives_the_passages_that_share_rare_words(facts: Path) -> None:
    tool = Search(SearchConfig(str(facts), results=1))
    assert tool.call({"query": "What is the capital of Peru?"}) == "Peru\n" + FACTS[1]["text"]
    assert tool.call({"query": "mammals"}) == FACTS[2]["text"]
    assert tool.call({"query": "xylophone"}) == "nothing was found"


def test_a_search_reads_paragraphs_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Oaks are trees.\n\nRoses have thorns.")
    (tmp_path / "b.bin").write_text("Oaks")
    assert Search(SearchConfig(str(tmp_path), max_chars=9)).call({"query": "oaks"}) == "Oaks are "


def test_a_collection_that_cannot_be_read_is_named(tmp_path: Path, facts: Path) -> None:
    with pytest.raises(ConfigError, match=r"path .*nowhere does not exist"):
        Search(SearchConfig(str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"line 1: not a JSON object with 'body' .*set text_key"):
        Search(SearchConfig(str(facts), text_key="body")).call({"query": "x"})


SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("numbers")

@server.tool()
def double(number: int) -> str:
    "Twice a number"
    if number < 0:
        raise ValueError("not below 0")
    return str(2 * number)

server.run()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("mcp") / "doubling.py"
    path.write_text(SERVER)
    return sys.executable, str(path)


def test_a_tool_of_a_server_is_called_by_its_protocol(command: tuple[str, ...]) -> None:
    tool = Mcp(McpConfig(tool="double", command=command))
    try:
        assert (tool.name, tool.description) == ("double", "Twice a number")
        assert list(tool.parameters["properties"]) == ["number"]
        assert tool.call({"number": 21}) == "42"
        with pytest.raises(ToolError, match="Error executing tool double"):
            tool.call({"number": -1})
    finally:
        tool.close()


def test_a_server_that_has_no_such_tool_or_does_not_answer_is_named(command: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"has no tool 'halve'; it has: double"):
        Mcp(McpConfig(tool="halve", command=command))
    with pytest.raises(ConfigError, match=r"the server 'no-such-program' does not answer"):
        Mcp(McpConfig(tool="double", command=("no-such-program",)))
    with pytest.raises(ConfigError, match="a command that starts the server, or its url, and not both"):
        Mcp(McpConfig(tool="double"))


@parametrize_with_checks("tools", "calculator", {})
def test_the_calculator_conforms(check: object) -> None:
    check()  # type: ignore[operator]
