"""Mistakes of the model are text, mistakes of others are errors, and nothing waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rlinf_core.agents.formats import ToolCall
from rlinf_core.agents.toolbox import Result, Toolbox
from rlinf_core.api import Tool
from rlinf_core.errors import ConfigError
from rlinf_core.plugins import NoConfig


class Broken(Tool):
    """Fails in the way it is told."""

    def call(self, arguments: Mapping[str, Any]) -> str:
        if arguments["input"] == "settings":
            raise ConfigError("tool broken: its index does not exist")
        raise KeyError("column")


@pytest.fixture
def box(tools: dict[str, Tool]) -> Iterator[Toolbox]:
    made = Toolbox({**tools, "broken": Broken(NoConfig())}, timeout_s=0.3, concurrency=2)
    yield made
    made.close()


def done(box: Toolbox, *calls: ToolCall) -> list[Result]:
    return box.end([box.begin(call) for call in calls])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall("add", {"terms": "20+22"}), "42"),
        (ToolCall("ad", {}), "error: no tool 'ad'; there are: add, sleep, broken. Did you mean 'add'?"),
        (ToolCall("add", {"sum": 1}), "error: add takes the arguments terms; unknown: sum; missing: terms"),
        (ToolCall("add", {"terms": "x"}), "error: terms are whole numbers"),
        (ToolCall("", problem="a call is a JSON object"), "error: a call is a JSON object"),
        (ToolCall("broken", {"input": "?"}), "error: KeyError"),
        (ToolCall("sleep", {"seconds": 30}), "error: no result within 0.3 s"),
    ],
)
def test_the_model_reads_what_came_of_a_call(box: Toolbox, call: ToolCall, text: str) -> None:
    assert done(box, call) == [Result(text, failed=text.startswith("error"))]


def test_a_mistake_of_the_user_ends_the_run(box: Toolbox) -> None:
    with pytest.raises(ConfigError, match="its index does not exist"):
        done(box, ToolCall("broken", {"input": "settings"}))


def test_calls_run_beside_each_other_and_hung_ones_do_not_take_all_threads(box: Toolbox) -> None:
    hung = [ToolCall("sleep", {"seconds": 2})] * 2
    assert [result.failed for result in done(box, *hung)] == [True, True]
    quick = [ToolCall("sleep", {"seconds": 0.01})] * 3
    assert [result.text for result in done(box, *quick)] == ["slept 0.01"] * 3
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("tool "))
