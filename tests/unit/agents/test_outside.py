"""Programs that call the model over HTTP: what they read, what is kept of it, and how episodes end."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from agent_parts import EOS, Ascii, Scripted, request

from rlinf_core.agents.episode import Episode
from rlinf_core.agents.formats import Format, JsonFormat, TagFormat
from rlinf_core.agents.outside import AgentLoop
from rlinf_core.agents.turns import Turns
from rlinf_core.types import OWN, Request, Sample, Sampling


class Speaking(Scripted):
    """Says what a function makes of everything before."""

    def __init__(self, say: Callable[[str], str]) -> None:
        super().__init__({}, capacity=3)
        self.say = say

    def _said(self, request: Request, sampling: Sampling) -> Sample:
        had = [] if request.begun is None else request.begun.response_ids
        before = Ascii().decode([*request.prompt.token_ids, *had])
        self.texts[request.group, request.replica] = [self.say(before)]
        return super()._said(request, sampling)


class Chat(Ascii):
    """Roles are seen."""

    tools: Any = ()

    def encode_prompt(self, prompt: Any) -> list[int]:
        return self.encode_turn(prompt)

    def describe_tools(self, tools: Any) -> None:
        self.tools = tools


def call(episode: Episode, messages: list[Any], **more: Any) -> dict[str, Any]:
    """As any client does."""
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    asked = urllib.request.Request(f"{episode.base_url}/chat/completions", body)
    asked.add_header("Authorization", f"Bearer {episode.api_key}")
    with urllib.request.urlopen(asked, timeout=20) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def run() -> Iterator[Callable[..., list[Sample]]]:
    """Plays episodes of a program; samples in order."""
    loops = []

    def played(
        program: Callable[[Episode], Any],
        say: Callable[[str], str] = lambda text: f"<{len(text)}>",
        asked: list[list[Request]] | None = None,
        *,
        episode_s: float = 20.0,
        max_new_tokens: int = 200,
        concurrency: int = 4,
        form: type[Format] = JsonFormat,
    ) -> list[Sample]:
        turns = Turns(Chat(), form({}), "chat", 100)
        engine = cast("Any", Speaking(say))
        loop = AgentLoop(engine, program, {OWN: turns}, concurrency=concurrency, episode_s=episode_s)
        loops.append(loop)
        sampling = Sampling(max_new_tokens=max_new_tokens)
        chunks = list(loop.generate(asked or [[request()]], sampling))
        return sorted((s for chunk in chunks for s in chunk), key=lambda s: (s.group, s.replica))

    yield played
    for loop in loops:
        loop.close()


def test_a_conversation_is_one_response_of_which_the_models_turns_are_trained(run: Any) -> None:
    def program(episode: Episode) -> float:
        messages = [user(episode.prompt)]
        for more in ("and?", "so?"):
            messages.append(call(episode, messages)["choices"][0]["message"])
            messages.append(user(more))
        assert call(episode, messages)["choices"][0]["finish_reason"] == "stop"
        return 0.25

    (sample,) = run(program)
    # [user:A] has 8 letters; each turn of the model ends with a token that is no letter
    said = ["<8>", "[user:and?]", "<22>", "[user:so?]", "<36>"]
    assert sample.text == "".join(said)
    assert Ascii().decode(sample.response_ids[sample.mask]) == "<8><22><36>"
    assert sample.response_ids[sample.mask].tolist().count(EOS) == 3
    assert sample.response_ids[~sample.mask].tolist().count(EOS) == 0
    assert Ascii().decode(sample.prompt.token_ids) == "[user:A]"
    assert sample.logprobs.tolist() == [-0.5 if mine else 0.0 for mine in sample.mask]
    assert (sample.returned, sample.reply, sample.finish, sample.error) == (0.25, "<36>", "stop", None)


def test_many_episodes_of_async_programs_share_the_engine(run: Any) -> None:
    async def program(episode: Episode) -> float:
        text = call(episode, [user(episode.prompt), user(str(episode.seed))])["choices"][0]["message"]
        return float(text["content"])

    asked = [[request(g, r) for r in range(3)] for g in range(4)]
    samples = run(program, lambda text: text[text.rindex(":") + 1 : -1], asked)
    assert [(s.group, s.replica, s.returned) for s in samples] == [
        (g, r, float(g)) for g in range(4) for r in range(3)
    ]


def test_calls_of_tools_come_in_the_form_of_the_api(run: Any) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]

    def say(text: str) -> str:
        if "[tool:3]" in text:
            return "It is 3"
        return 'Well <tool_call>\n{"name": "add", "arguments": {"terms": "1+2"}}\n</tool_call>'

    def program(episode: Episode) -> None:
        messages: list[Any] = [user("1+2?")]
        choice = call(episode, messages, tools=tools)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Well"
        (called,) = choice["message"]["tool_calls"]
        assert json.loads(called["function"]["arguments"]) == {"terms": "1+2"}
        messages += [choice["message"], {"role": "tool", "tool_call_id": called["id"], "content": "3"}]
        assert call(episode, messages, tools=tools)["choices"][0]["message"]["content"] == "It is 3"

    (sample,) = run(program, say)
    assert sample.error is None
    assert Ascii().decode(sample.response_ids[~sample.mask]) == "[tool:3]"
    assert (sample.tool_calls, sample.returned) == (1, None)


def test_calls_between_tags_are_those_of_the_tools_that_the_agent_names(run: Any) -> None:
    """Of a tool that is not offered nothing is a call; the text goes to the first argument."""
    known = {"type": "object", "properties": {"terms": {"type": "string"}, "base": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": known}}, {"type": "code"}]

    def program(episode: Episode) -> None:
        choice = call(episode, [user("1+2?")], tools=tools)["choices"][0]
        assert choice["message"]["content"] == "<b>Well</b>"
        (called,) = choice["message"]["tool_calls"]
        assert called["function"] == {"name": "add", "arguments": '{"terms": "1+2"}'}
        alone = call(episode, [user("3?")])["choices"][0]
        assert (alone["finish_reason"], "tool_calls" in alone["message"]) == ("stop", False)

    (sample,) = run(program, lambda _: "<b>Well</b> <add>1+2</add><b>x</b>", form=TagFormat)
    assert sample.error is None


def test_of_several_conversations_that_in_which_most_was_said_is_trained(run: Any) -> None:
    def program(episode: Episode) -> None:
        first = call(episode, [user("a")])["choices"][0]["message"]
        call(episode, [user("b")])
        call(episode, [user("a"), first, user("more")])
        call(episode, [user("a"), {"role": "assistant", "content": "forged"}, user("more")])

    (sample,) = run(program)
    assert Ascii().decode(sample.prompt.token_ids) == "[user:a]"
    assert sample.text == "<8>[user:more]<22>"


def test_the_answer_has_as_much_room_as_is_left(run: Any) -> None:
    found: list[Any] = []

    def program(episode: Episode) -> None:
        messages = [user("a")]
        for most in (4, None, None):
            told = call(episode, messages, **({"max_tokens": most} if most else {}))
            choice = told["choices"][0]
            found.append((choice["message"]["content"], choice["finish_reason"], told["usage"]))
            messages += [choice["message"], user("b")]

    (sample,) = run(program, lambda text: "1234567890", max_new_tokens=20)
    assert [each[:2] for each in found] == [("1234", "length"), ("12345678", "length"), ("", "length")]
    assert found[0][2] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    assert len(sample.response_ids) == 20


def test_programs_that_fail_or_say_nothing_or_hang_give_rows_with_an_error(run: Any) -> None:
    def program(episode: Episode) -> None:
        if episode.seed == 0:
            raise KeyError("page")
        if episode.seed == 1:
            return
        if episode.seed == 2:
            time.sleep(30)
        call(episode, [user("a")])

    began = time.monotonic()
    samples = run(program, asked=[[request(g)] for g in range(4)], episode_s=1.0)
    assert time.monotonic() - began < 15
    assert [sample.error for sample in samples] == [
        "agent.program failed: KeyError: 'page'",
        "agent.program returned without a call of the model",
        "agent.program took longer than 1 s (agent.episode_s)",
        None,
    ]
    assert [int(sample.mask.sum()) > 0 for sample in samples] == [False, False, False, True]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"messages": []}, 400, "a list with one message or more"),
        ({"messages": ["hi"]}, 400, "an object with role and content"),
        ({"messages": [user("a")], "n": 2}, 400, "one answer a call"),
        ({"messages": [user("a")], "tools": "add"}, 400, "tools is a list of objects"),
        ({"messages": [user("a")], "max_tokens": -1}, 400, "a whole number above 0"),
        ({"messages": [user("x" * 900)]}, 400, "exceeds the model's context of 1000"),
    ],
)
def test_calls_that_cannot_be_answered_say_why(run: Any, body: Any, status: int, why: str) -> None:
    found: list[Any] = []

    def program(episode: Episode) -> None:
        with pytest.raises(urllib.error.HTTPError) as caught:
            call(episode, body.pop("messages"), **body)
        found.append((caught.value.code, json.loads(caught.value.read())["error"]["message"]))

    run(program)
    assert found[0][0] == status
    assert why in found[0][1]


def test_keys_of_others_and_of_episodes_that_are_over_are_refused(run: Any) -> None:
    kept: list[Episode] = []

    def program(episode: Episode) -> None:
        kept.append(episode)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            call(Episode(episode.base_url, "guess", ""), [user("a")])
        call(episode, [user("a")])

    (sample,) = run(program)
    assert sample.error is None
    with pytest.raises(urllib.error.HTTPError, match="401"):
        call(kept[0], [user("a")])


def test_streams_models_and_other_paths(run: Any) -> None:
    found: list[Any] = []

    def program(episode: Episode) -> None:
        host = episode.base_url.removeprefix("http://").removesuffix("/v1")
        link = http.client.HTTPConnection(host, timeout=10)
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("GET", "/v2", None),
            ("POST", "/v1/chat/completions", "{"),
            ("POST", "/v1/chat/completions", json.dumps({"messages": [user("a")], "stream": True})),
        ):
            link.request(method, path, body, {"Authorization": f"Bearer {episode.api_key}"})
            answer = link.getresponse()
            found.append((answer.status, answer.read().decode()))

    run(program)
    assert [status for status, _ in found] == [200, 404, 400, 200]
    assert json.loads(found[0][1])["data"][0]["id"] == "policy"
    lines = found[3][1].split("\n\n")
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == "<8>"
    assert lines[1] == "data: [DONE]"


def test_calls_beside_each_other_are_conversations_of_their_own(run: Any) -> None:
    def program(episode: Episode) -> None:
        asking = [threading.Thread(target=call, args=(episode, [user("a" * (i + 1))])) for i in range(5)]
        for each in asking:
            each.start()
        for each in asking:
            each.join()

    (sample,) = run(program, lambda text: text)
    assert sample.text == "[user:aaaaa]"
    assert np.flatnonzero(~sample.mask).tolist() == []
