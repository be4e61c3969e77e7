"""A processor of ASCII, tools of tests, and an engine that says what it was told to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_core.api import TextProcessor, Tool
from rlinf_core.errors import ToolError
from rlinf_core.responses import sample_of
from rlinf_core.types import Message, Prompt, Request, Sample, Sampling

EOS = 1


class Ascii(TextProcessor):
    """An id a character; chats close a turn with EOS and open the next one with `[role:` and `]`."""

    eos_ids = frozenset({EOS})
    pad_id = 0
    context_length = 1000

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        return self.encode_text(str(prompt))

    def encode_response(self, text: str) -> list[int]:
        return [*self.encode_text(text), EOS]

    def encode_text(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_turn(self, messages: Sequence[Message]) -> list[int]:
        return self.encode_text("".join(f"[{each['role']}:{each['content']}]" for each in messages))

    def decode(self, token_ids: Any) -> str:
        return "".join(chr(int(token)) for token in token_ids if int(token) != EOS)


class Adder(Tool):
    """Adds at once."""

    name = "add"
    parameters: Mapping[str, Any] = {"properties": {"terms": {"type": "string"}}, "required": ["terms"]}
    instant = True

    def call(self, arguments: Mapping[str, Any]) -> str:
        try:
            return str(sum(int(term) for term in arguments["terms"].split("+")))
        except ValueError as err:
            raise ToolError("terms are whole numbers") from err


class Sleeper(Tool):
    """Takes as many seconds as it is told."""

    name = "sleep"
    parameters: Mapping[str, Any] = {"properties": {"seconds": {"type": "number"}}}

    def call(self, arguments: Mapping[str, Any]) -> str:
        time.sleep(float(arguments["seconds"]))
        return f"slept {arguments['seconds']}"


class Scripted:
    """An engine of `capacity` rows: turn after turn of a response it says the next of its texts, one row a
    step, and asks for more whenever it has room. A text that does not end with a stop text ends with EOS."""

    version = 4

    def __init__(self, texts: Mapping[tuple[int, int], Sequence[str]], capacity: int = 2) -> None:
        self.texts = {key: list(each) for key, each in texts.items()}
        self.capacity = capacity
        self.log: list[str] = []

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        source, rows, more = iter(requests), list[Request](), True
        while True:
            while more and len(rows) < self.capacity:
                chunk = next(source, None)
                more = chunk is not None
                if not chunk:
                    break
                rows += chunk
            if rows:
                yield [self._said(rows.pop(0), sampling)]
            elif not more:
                return

    def _said(self, request: Request, sampling: Sampling) -> Sample:
        text = self.texts[request.group, request.replica].pop(0)
        self.log.append(f"{request.group}.{request.replica} {text}")
        begun = request.begun
        had = ([], [], []) if begun is None else (begun.response_ids, begun.logprobs, begun.versions)
        ends = (Ascii().decode(had[0]) + text).endswith(sampling.stop)
        ids = [ord(letter) for letter in text] + [EOS] * (not ends)
        whole = np.array([*had[0], *ids], np.int64)[: request.until or sampling.max_new_tokens]
        cut = len(whole) < len(had[0]) + len(ids)
        return sample_of(
            request,
            whole,
            np.array([*had[1], *[-0.5] * len(ids)], np.float32)[: len(whole)],
            np.array([*had[2], *[self.version] * len(ids)], np.int64)[: len(whole)],
            "length" if cut else "stop",
            Ascii().decode(whole),
        )


def request(group: int = 0, replica: int = 0, **more: Any) -> Request:
    prompt = Prompt(index=group, token_ids=np.array([65]), text="A")
    return Request(prompt, group, replica, seed=group, **more)
