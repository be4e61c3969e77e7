"""Episodes in which a program calls several policies, and what is kept of each."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from agent_parts import Ascii, Scripted, request

from rlinf_core.agents.episode import Episode
from rlinf_core.agents.formats import JsonFormat
from rlinf_core.agents.outside import AgentLoop
from rlinf_core.agents.turns import Turns
from rlinf_core.roles.engines import Engines
from rlinf_core.types import OWN, Request, Sample, Sampling


class Model:
    """Of an engine that has none."""

    config = model = lora = None
    device = "cpu"
    seed = 0


class Voice(Scripted, Model):
    """Says its name and how long what it has read is."""

    def __init__(self, name: str) -> None:
        super().__init__({}, capacity=2)
        self.name = name

    def _said(self, request: Request, sampling: Sampling) -> Sample:
        had = [] if request.begun is None else request.begun.response_ids
        read = Ascii().decode([*request.prompt.token_ids, *had])
        self.texts[request.group, request.replica] = [f"{self.name}{len(read)}"]
        return super()._said(request, sampling)


class Plain(Ascii):
    """Roles are not seen."""

    def encode_prompt(self, prompt: Any) -> list[int]:
        return self.encode_text("".join(message["content"] for message in prompt))

    def describe_tools(self, tools: Any) -> None:
        """There are none."""


def ask(episode: Episode, model: str, *said: str) -> str:
    """The answer to messages that user and assistant took turns to say."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    body = json.dumps({"model": model, "messages": messages}).encode()
    asked = urllib.request.Request(f"{episode.base_url}/chat/completions", body)
    asked.add_header("Authorization", f"Bearer {episode.api_key}")
    with urllib.request.urlopen(asked, timeout=20) as answer:
        told = json.loads(answer.read())
    assert told["model"] == model
    return str(told["choices"][0]["message"]["content"])


@pytest.fixture
def run() -> Iterator[Callable[..., list[Sample]]]:
    """Plays episodes with a writer, who is the run's own, and a critic."""
    loops = []

    def played(program: Callable[[Episode], Any], groups: int = 1) -> list[Sample]:
        turns = {name: Turns(Plain(), JsonFormat({}), "plain", 100) for name in (OWN, "critic")}
        engines = Engines(cast("Any", {OWN: Voice("w"), "critic": Voice("c")}))
        loop = AgentLoop(engines, program, turns, concurrency=3, episode_s=20.0)
        loops.append(loop)
        asked = [[request(group, replica) for replica in range(2)] for group in range(groups)]
        chunks = list(loop.generate(asked, Sampling(max_new_tokens=50)))
        return sorted((s for chunk in chunks for s in chunk), key=lambda s: (s.group, s.replica))

    yield played
    for loop in loops:
        loop.close()


def test_each_policy_keeps_its_own_conversation_and_reward(run: Any) -> None:
    def program(episode: Episode) -> dict[str, float]:
        draft = ask(episode, OWN, "abc")
        advice = ask(episode, "critic", draft + "?")
        ask(episode, OWN, "abc", draft, advice)
        return {OWN: 1.0, "critic": -0.5}

    samples = run(program, groups=4)
    assert [(s.group, s.replica) for s in samples] == [(g, r) for g in range(4) for r in range(2)]
    for sample in samples:
        (critic,) = sample.others.values()
        # the writer reads abc (3), then abc + w3 + its unseen end of turn + c3 (7)
        assert (sample.text, critic.text) == ("w3c3w7", "c3")
        assert Ascii().decode(sample.response_ids[~sample.mask]) == "c3"
        assert Ascii().decode(critic.prompt.token_ids) == "w3?"
        assert (sample.returned, critic.returned) == (1.0, -0.5)
        assert (critic.group, critic.replica, critic.error) == (sample.group, sample.replica, None)


def test_a_number_is_everybodys_and_who_says_nothing_has_no_row(run: Any) -> None:
    def program(episode: Episode) -> float:
        ask(episode, OWN, "a")
        if episode.seed == 1:
            ask(episode, "critic", "b")
        return 0.5

    samples = run(program, groups=2)
    assert [sorted(sample.others) for sample in samples] == [[], [], ["critic"], ["critic"]]
    assert [sample.returned for sample in samples] == [0.5] * 4
    assert [sample.others["critic"].returned for sample in samples[2:]] == [0.5, 0.5]


def test_an_episode_without_the_runs_own_policy_keeps_what_others_said(run: Any) -> None:
    samples = run(lambda episode: {"critic": float(len(ask(episode, "critic", "a")))})
    for sample in samples:
        assert sample.error == "agent.program returned without a call of the model 'policy'"
        assert not sample.mask.any()
        assert (sample.others["critic"].returned, sample.others["critic"].error) == (2.0, None)


def test_wrong_names_are_told(run: Any) -> None:
    found = []

    def program(episode: Episode) -> dict[str, float]:
        ask(episode, OWN, "a")
        try:
            ask(episode, "writer", "a")
        except urllib.error.HTTPError as err:
            found.append((err.code, json.loads(err.read())["error"]["message"]))
        return {"writer": 1.0}

    samples = run(program)
    assert found == [(404, "model: there is no 'writer'; there are policy, critic")] * 2
    assert [sample.error for sample in samples] == [
        "agent.program failed: ValueError: it returned a reward for 'writer'; there are policy, critic"
    ] * 2
