"""Episodes of an outside agent: a program of the user that calls the model as it would call a service.

Its calls are put before the rollout engine as they come, and answers are kept as the tokens that were drawn.
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.agents.conversation import Branch, content_of
from rlinf_core.agents.endpoint import CallError, Endpoint, Json
from rlinf_core.agents.episode import Episode, Running
from rlinf_core.errors import RlinfError
from rlinf_core.types import OWN, Prompt, Request, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_core.agents.turns import Turns
    from rlinf_core.api import RolloutEngine
    from rlinf_core.types import Message

_LOOK_S = 0.2  # between two looks at deadlines while nothing comes
_ODD = 0x9E3779B97F4A7C15
_SEED = (1 << 63) - 1


@dataclass
class _Ask:
    """A call that waits for the model."""

    request: Request
    branch: Branch
    tools: Sequence[Json]  # that the model may call
    done: threading.Event = field(default_factory=threading.Event)
    sample: Sample | None = None


class AgentLoop:
    """Stands before a rollout engine, as `ToolLoop` does; `turns` are those of each policy that it has. Up to
    `concurrency` episodes run at a time, each for `episode_s` at most. Which calls come when is up to the
    programs, so that the last bits of log-probabilities depend on time."""

    def __init__(
        self,
        engine: RolloutEngine,
        program: Callable[..., Any],
        turns: Mapping[str, Turns],
        *,
        concurrency: int,
        episode_s: float,
    ) -> None:
        self.engine = engine
        self.program = program
        self.turns = turns
        self.concurrency = concurrency
        self.episode_s = episode_s
        self._sampling = Sampling()
        self._episodes: dict[str, Running] = {}
        self._asked: queue.SimpleQueue[_Ask | None] = queue.SimpleQueue()  # None: an episode is over
        self._in_engine: dict[int, _Ask] = {}
        self._number = 0
        self._encoding = threading.Lock()
        self._finished: list[Sample] = []
        self.endpoint = Endpoint(self.complete, list(turns))
        threading.Thread(target=self.endpoint.serve_forever, daemon=True, name="agent endpoint").start()

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished episodes as they finish."""
        self._sampling = sampling
        self._dismiss(self._calls(wait=False))  # of episodes that an earlier call has given up
        try:
            for samples in self.engine.generate(self._source(iter(requests)), sampling):
                for sample in samples:
                    ask = self._in_engine.pop(sample.group)
                    ask.sample = sample
                    ask.done.set()
                self._end_episodes()
                yield from self._leaving()
            yield from self._leaving()
        finally:
            self._episodes.clear()
            self._dismiss(self._in_engine.values())
            self._in_engine.clear()

    def close(self) -> None:
        """Nobody is answered any more."""
        self.endpoint.shutdown()
        self.endpoint.server_close()

    def complete(self, key: str, call: Mapping[str, Any]) -> tuple[Json, Json]:
        """Answer a call of an episode; runs in the thread of its connection."""
        running = self._episodes.get(key)
        if running is None:
            raise CallError(401, "this key is of no episode that runs; use episode.api_key")
        messages, most, tools = _checked(call)
        policy = self._policy_of(call)
        with running.talking, self._encoding:
            ask = self._place(running, policy, messages, most, tools)
        if ask.request.until <= (0 if ask.request.begun is None else len(ask.request.begun.response_ids)):
            return _choice({"role": "assistant", "content": ""}, "length", ask, [])
        self._asked.put(ask)
        ask.done.wait()
        if ask.sample is None:
            raise CallError(503, "the rollout has ended")
        return self._answered(running, ask)

    def _policy_of(self, call: Mapping[str, Any]) -> str:
        """Whom a call asks: the one that there is, or by name."""
        asked = call.get("model")
        if len(self.turns) == 1:
            return OWN
        if asked not in self.turns:
            raise CallError(404, f"model: there is no {asked!r}; there are {', '.join(self.turns)}")
        return str(asked)

    def _place(
        self,
        running: Running,
        policy: str,
        messages: Sequence[Message],
        most: int,
        tools: Sequence[Json],
    ) -> _Ask:
        """Where a call stands in its episode, as a request for the engine."""
        processor, conversation = self.turns[policy].processor, running.conversations[policy]
        try:
            processor.describe_tools(tools)
            branch, begun = conversation.ask(messages)
        except RlinfError as err:
            raise CallError(400, str(err)) from err
        limit, context = self._sampling.max_new_tokens, processor.context_length
        if len(branch.prompt_ids) + limit > context:
            raise CallError(
                400,
                f"this prompt has {len(branch.prompt_ids)} tokens; with sampling.max_new_tokens={limit} for "
                f"all that follows it exceeds the model's context of {context}",
            )
        had = 0 if begun is None else len(begun.response_ids)
        self._number += 1
        origin = running.request
        number = conversation.branches.index(branch)
        number = number * len(self.turns) + list(self.turns).index(policy)
        request = Request(
            prompt=Prompt(index=origin.prompt.index, token_ids=branch.prompt_ids, text=origin.prompt.text),
            group=self._number,
            replica=0,
            seed=(origin.seed + _ODD * number) & _SEED,
            begun=begun,
            until=min(limit, had + most) if most else limit,
            policy=policy,
        )
        return _Ask(request, branch, tools)

    def _answered(self, running: Running, ask: _Ask) -> tuple[Json, Json]:
        """The model's turn as a message, kept so that the next call is known to go on after it."""
        sample = cast("Sample", ask.sample)
        begun = ask.request.begun
        ids = sample.response_ids[0 if begun is None else len(begun.response_ids) :]
        turns = self.turns[ask.request.policy]
        text = turns.processor.decode(ids)
        form = turns.form.of(ask.tools)
        called = form.calls(text) if ask.tools else []
        calls = [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": each.name, "arguments": json.dumps(dict(each.arguments))},
            }
            for each in called
            if not each.problem
        ]
        message: Json = {"role": "assistant", "content": text}
        if calls:
            said = form.before(text).rstrip()
            message |= {"content": said or None, "tool_calls": calls}
        with running.talking:
            ask.branch.sample = sample
            ask.branch.messages = [*ask.branch.messages, message]
        finish = "tool_calls" if calls else sample.finish
        return _choice(message, finish, ask, [int(token) for token in ids])

    def _source(self, requests: Iterator[list[Request]]) -> Iterator[list[Request]]:
        """What the engine is asked next."""
        waiting: list[Request] = []
        more = True
        while True:
            while more and len(self._episodes) + len(waiting) < self.concurrency:
                chunk = next(requests, None)
                more = chunk is not None
                waiting += chunk or []
            while waiting and len(self._episodes) < self.concurrency:
                self._begin(waiting.pop(0))
            asked = self._calls(wait=not self._in_engine and bool(self._episodes))
            self._end_episodes()
            if asked or self._in_engine:
                self._in_engine.update({ask.request.group: ask for ask in asked})
                yield [ask.request for ask in asked]
            elif not (self._episodes or waiting or more):
                return

    def _calls(self, *, wait: bool) -> list[_Ask]:
        """Those that have come; with `wait` at least one, or what else happens."""
        found: list[_Ask] = []
        while True:
            try:
                ask = self._asked.get(timeout=_LOOK_S) if wait and not found else self._asked.get_nowait()
            except queue.Empty:
                return found
            wait = False
            if ask is not None:
                found.append(ask)

    def _begin(self, request: Request) -> None:
        key = secrets.token_urlsafe(24)
        prompt = request.prompt
        told = Episode(
            base_url=self.endpoint.base_url,
            api_key=key,
            prompt=prompt.text,
            answer=prompt.answer,
            meta=prompt.meta,
            seed=request.seed,
        )
        running = Running(request, told, self.turns, self.episode_s)
        self._episodes[key] = running
        running.start(self.program, lambda: self._asked.put(None))

    def _end_episodes(self) -> None:
        for key, running in list(self._episodes.items()):
            if running.over():
                del self._episodes[key]
                self._finished.append(running.sample())

    def _dismiss(self, asked: Iterable[_Ask]) -> None:
        for ask in asked:
            ask.done.set()

    def _leaving(self) -> Iterator[list[Sample]]:
        finished, self._finished = self._finished, []
        if finished:
            yield finished


def _checked(call: Mapping[str, Any]) -> tuple[list[Message], int, list[Json]]:
    """Messages, the most tokens of the answer (0 = as many as there is room for), and tools."""
    messages = call.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallError(400, "messages is a list with one message or more")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallError(400, "a message is an object with role and content")
    if call.get("n") not in (None, 1):
        raise CallError(400, f"n: {call['n']}: one answer a call; call several times")
    most = call.get("max_completion_tokens") or call.get("max_tokens") or 0
    if not isinstance(most, int) or most < 0:
        raise CallError(400, f"max_tokens: {most!r}: needs a whole number above 0")
    tools = call.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise CallError(400, "tools is a list of objects, each with type and function")
    return [{**message, "content": content_of(message)} for message in messages], most, tools


def _choice(message: Message, finish: str, ask: _Ask, ids: Sequence[int]) -> tuple[Json, Json]:
    had = len(ask.branch.prompt_ids)
    had += 0 if ask.request.begun is None else len(ask.request.begun.response_ids)
    choice = {"index": 0, "message": dict(message), "finish_reason": finish, "token_ids": list(ids)}
    usage = {"prompt_tokens": had, "completion_tokens": len(ids), "total_tokens": had + len(ids)}
    return choice, usage
