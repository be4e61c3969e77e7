"""Turns of responses: what is called, what goes on, what is trained, and when it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from agent_parts import Scripted, request

from rlinf_core.agents.loop import ToolLoop
from rlinf_core.agents.toolbox import Toolbox
from rlinf_core.agents.turns import Turns
from rlinf_core.api import Tool
from rlinf_core.responses import begun_of
from rlinf_core.types import Request, Sample, Sampling

ADDS = ("<add>1+2</add>", "It is 3")
WHOLE = "<add>1+2</add><result>3</result>It is 3"


@pytest.fixture(params=[False, True], ids=["waits", "overlaps"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def run(
    engine: Scripted,
    tools: dict[str, Tool],
    turns: Turns,
    asked: list[list[Request]],
    *,
    max_new_tokens: int = 100,
    max_turns: int = 8,
    overlap: bool = False,
) -> dict[tuple[int, int], Sample]:
    box = Toolbox(tools, timeout_s=5.0, concurrency=4)
    loop = ToolLoop(cast("Any", engine), box, turns, max_turns=max_turns, overlap=overlap)
    try:
        sampling = Sampling(max_new_tokens=max_new_tokens)
        samples = [sample for chunk in loop.generate(asked, sampling) for sample in chunk]
    finally:
        box.close()
    found = {(sample.group, sample.replica): sample for sample in samples}
    assert len(found) == len(samples)
    return found


def test_an_answer_is_read_and_not_trained(tools: dict[str, Tool], turns: Turns, overlap: bool) -> None:
    (sample,) = run(Scripted({(0, 0): ADDS}), tools, turns, [[request()]], overlap=overlap).values()
    assert sample.text == WHOLE
    read = len("<add>1+2</add>"), len("<add>1+2</add><result>3</result>")
    assert sample.mask.tolist() == [not read[0] <= i < read[1] for i in range(len(WHOLE) + 1)]
    assert sample.logprobs.tolist() == [-0.5 if trained else 0.0 for trained in sample.mask]
    assert (sample.finish, sample.reply, sample.tool_calls, sample.tool_errors) == ("stop", "It is 3", 1, 0)
    assert (sample.weight_version, sample.weight_versions) == (4, None)


def test_many_responses_share_the_engine(tools: dict[str, Tool], turns: Turns, overlap: bool) -> None:
    said = {(g, r): [f"<add>{g}+{r}</add>"] * (g % 3) + [f"{g}{r}"] for g in range(5) for r in range(4)}
    asked = [[request(g, r) for r in range(4)] for g in range(5)]
    found = run(Scripted(said, capacity=3), tools, turns, asked, overlap=overlap)
    for (g, r), sample in found.items():
        answered = f"<add>{g}+{r}</add><result>{g + r}</result>" * (g % 3)
        assert sample.text == f"{answered}{g}{r}"
        assert sample.tool_calls == g % 3
    assert len(found) == 20


def test_others_go_on_while_a_slow_tool_works(tools: dict[str, Tool], turns: Turns) -> None:
    said = {(0, 0): ["<sleep>0.3</sleep>", "late"], (1, 0): ["quick"], (2, 0): ["quick"]}
    asked = [[request(group)] for group in range(3)]
    overlapped, waited = Scripted(said), Scripted(said)
    run(overlapped, tools, turns, asked, overlap=True)
    assert overlapped.log == ["0.0 <sleep>0.3</sleep>", "1.0 quick", "2.0 quick", "0.0 late"]
    run(waited, tools, turns, asked)
    assert waited.log.index("0.0 late") < waited.log.index("2.0 quick")


def test_a_mistake_is_counted_and_read(tools: dict[str, Tool], turns: Turns) -> None:
    said = {(0, 0): ["<add>one</add>", "sorry"]}
    (sample,) = run(Scripted(said), tools, turns, [[request()]]).values()
    assert sample.text == "<add>one</add><result>error: terms are who...</result>sorry"
    assert (sample.tool_calls, sample.tool_errors) == (1, 1)


def test_tools_answer_so_often_and_no_more(tools: dict[str, Tool], turns: Turns) -> None:
    said = {(0, 0): ["<add>1</add>"] * 3}
    (sample,) = run(Scripted(said), tools, turns, [[request()]], max_turns=2).values()
    assert sample.text == "<add>1</add><result>1</result>" * 2 + "<add>1</add>"
    assert (sample.finish, sample.reply, sample.tool_calls) == ("stop", "<add>1</add>", 2)


@pytest.mark.parametrize("room", [14, 15, 32], ids=["nothing of it", "its beginning", "just all of it"])
def test_an_answer_that_does_not_fit_ends_the_response(
    tools: dict[str, Tool], turns: Turns, room: int
) -> None:
    (sample,) = run(Scripted({(0, 0): ADDS}), tools, turns, [[request()]], max_new_tokens=room).values()
    assert sample.text == "<add>1+2</add><result>3</result>"[:room]
    assert (sample.finish, sample.reply, int(sample.mask.sum())) == ("length", "", 14)


@pytest.mark.parametrize("until", range(1, len(WHOLE) + 1))
def test_a_response_made_in_parts_is_that_of_one_go(tools: dict[str, Tool], turns: Turns, until: int) -> None:
    """Whatever the part ends in: a call, an answer, or the reply."""

    class Cut(Scripted):
        """Says what is left of the whole, up to the end of a turn."""

        def _said(self, request: Request, sampling: Sampling) -> Sample:
            had = 0 if request.begun is None else len(request.begun.response_ids)
            call = len(ADDS[0])
            self.texts[0, 0] = [ADDS[0][had:] if had < call else WHOLE[had:]]
            return super()._said(request, sampling)

    engine = Cut({(0, 0): []})
    (part,) = run(engine, tools, turns, [[request(until=until)]]).values()
    assert part.finish == "length"
    assert len(part.response_ids) >= until
    going = replace(request(), begun=begun_of(part))
    (sample,) = run(engine, tools, turns, [[going]]).values()
    (whole,) = run(Cut({(0, 0): []}), tools, turns, [[request()]]).values()
    assert sample.response_ids.tolist() == whole.response_ids.tolist()
    assert sample.mask.tolist() == whole.mask.tolist()
    assert (sample.reply, sample.tool_calls) == (whole.reply, whole.tool_calls) == ("It is 3", 1)
