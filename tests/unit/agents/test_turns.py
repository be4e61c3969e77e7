"""Token ids of answers and of demonstrations, and which of them are the model's."""

from __future__ import annotations

import pytest
from agent_parts import EOS, Ascii

from rlinf_core.agents.formats import FORMATS
from rlinf_core.agents.turns import Turns
from rlinf_core.errors import DataError
from rlinf_core.types import Message

CALL = {"function": {"name": "add", "arguments": {"terms": "1+2"}}}
TOLD: list[Message] = [
    {"role": "assistant", "content": "So ", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3"},
]


def chat() -> Turns:
    return Turns(Ascii(), FORMATS["tags"]({"add": "terms"}), "chat", 20)


def test_answers_stand_within_the_text_or_are_messages(turns: Turns) -> None:
    assert turns.processor.decode(turns.answer(["3", "4"])) == "<result>3</result><result>4</result>"
    assert turns.stops == ("</add>", "</sleep>")
    assert chat().processor.decode(chat().answer(["3", "4"])) == "[tool:3][tool:4]"
    assert chat().stops == ()


def test_a_long_answer_is_cut(turns: Turns) -> None:
    said = turns.processor.decode(turns.answer(["x" * 20]) + turns.answer(["y" * 21]))
    assert said == f"<result>{'x' * 20}</result><result>{'y' * 20}...</result>"


def test_a_demonstration_of_one_turn_is_imitated_whole(turns: Turns) -> None:
    ids, mask = turns.demonstration("ok")
    assert (ids.tolist(), mask.tolist()) == ([111, 107, EOS], [True, True, True])


def test_what_tools_say_is_not_imitated(turns: Turns) -> None:
    ids, mask = turns.demonstration(TOLD)
    assert turns.processor.decode(ids) == "So <add>1+2</add><result>3</result>It is 3"
    assert turns.processor.decode(ids[~mask]) == "<result>3</result>"
    assert ids.tolist().count(EOS) == 1
    assert ids[-1] == EOS


def test_in_a_chat_every_turn_of_the_model_ends_and_what_follows_is_not_imitated() -> None:
    ids, mask = chat().demonstration([*TOLD, {"role": "user", "content": "Sure?"}, TOLD[-1]])
    spoken = "So <add>1+2</add>", "It is 3", "It is 3"
    assert chat().processor.decode(ids[~mask]) == "[tool:3][user:Sure?]"
    assert chat().processor.decode(ids[mask]) == "".join(spoken)
    assert [i for i, token in enumerate(ids[mask]) if token == EOS] == [17, 25, 33]


def test_in_a_text_a_turn_ends_where_somebody_else_than_a_tool_speaks(turns: Turns) -> None:
    ids, mask = turns.demonstration([TOLD[2], {"role": "user", "content": "Sure?"}, TOLD[2]])
    assert turns.processor.decode(ids) == "It is 3Sure?It is 3"
    assert turns.processor.decode(ids[~mask]) == "Sure?"
    assert [i for i, token in enumerate(ids) if token == EOS] == [7, 20]


def test_a_demonstration_that_a_tool_ends_is_refused(turns: Turns) -> None:
    with pytest.raises(DataError, match="begins and ends with a message of the assistant"):
        turns.demonstration(TOLD[:2])
