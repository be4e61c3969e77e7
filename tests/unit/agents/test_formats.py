"""Calls as models write them, whole and broken."""

from __future__ import annotations

import pytest

from rlinf_core.agents.formats import JsonFormat, TagFormat, ToolCall

FIRST = {"add": "terms", "adder": "terms"}


def test_calls_in_json_are_read_in_order() -> None:
    text = (
        'Let me see. <tool_call>\n{"name": "add", "arguments": {"terms": "1+2"}}\n</tool_call>'
        '<tool_call>{"name": "clock"}</tool_call> Done <tool_call>{"name": "add"'
    )
    assert JsonFormat(FIRST).calls(text) == [ToolCall("add", {"terms": "1+2"}), ToolCall("clock", {})]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{name: add}", "a call is a JSON object: Expecting property name"),
        ("[1]", 'a call is a JSON object with "name" and "arguments"'),
        ('{"name": 3}', 'a call is a JSON object with "name" and "arguments"'),
        ('{"name": "add", "arguments": "1+2"}', '"arguments" is a JSON object'),
        ("[" * 100_000, "a call is a JSON object: "),
    ],
)
def test_what_is_no_call_says_why(written: str, problem: str) -> None:
    (call,) = JsonFormat(FIRST).calls(f"<tool_call>{written}</tool_call>")
    assert call.problem.startswith(problem)


def test_tags_are_the_names_of_tools_and_give_their_text_to_the_first_argument() -> None:
    found = TagFormat(FIRST).calls("<b>x</b><adder>1+1</adder><add>2+\n3</add><add>4</adder>")
    assert found == [ToolCall("adder", {"terms": "1+1"}), ToolCall("add", {"terms": "2+\n3"})]


def test_tags_may_be_other_marks() -> None:
    form = TagFormat({"add": "terms"}, ["(", ")", "=", ";"])
    assert form.calls("so (1+2) and (3") == [ToolCall("add", {"terms": "1+2"})]
    assert (form.stops, form.read(["3", "4"])) == ((")",), "=3;=4;")
    assert form.before("so (1+2) and (3") == "so "


@pytest.mark.parametrize("form", [JsonFormat(FIRST), TagFormat(FIRST)])
def test_what_is_written_is_read_again(form: JsonFormat | TagFormat) -> None:
    text = form.written("add", {"terms": "1+2"})
    assert form.calls(text) == [ToolCall("add", {"terms": "1+2"})]
    assert text.endswith(form.stops)
