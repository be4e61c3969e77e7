"""From texts of turns to token ids, and which of these the model wrote.

Axes: T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlinf_core.errors import DataError

if TYPE_CHECKING:
    from rlinf_core.agents.formats import Format
    from rlinf_core.api import TextProcessor
    from rlinf_core.types import BoolArray, IntArray, Message

TurnStyle = Literal["plain", "chat"]
_CUT = "..."


class Turns:
    """`plain`: results stand within the model's text, and a turn ends with a stop text. `chat`: a turn ends
    with an end-of-sequence id, and results come as messages of tools by the model's chat template."""

    def __init__(
        self, processor: TextProcessor, form: Format, style: TurnStyle, max_result_tokens: int
    ) -> None:
        self.processor = processor
        self.form = form
        self.style = style
        self.max_result_tokens = max_result_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a turn."""
        return self.form.stops if self.style == "plain" else ()

    def answer(self, results: Sequence[str]) -> list[int]:
        """Ids between a turn of the model and its next one."""
        short = [self._shortened(result) for result in results]
        if self.style == "plain":
            return self.processor.encode_text(self.form.read(short))
        return self.processor.encode_turn([{"role": "tool", "content": result} for result in short])

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation before the model's first own turn; what assistants said in it is not its."""
        heard = list(takewhile(lambda each: each["role"] != "assistant", messages))
        if self.style == "chat" or len(heard) == len(messages):
            return self.processor.encode_prompt(list(messages))
        ids = self.processor.encode_prompt(heard or "")
        for role, group in groupby(messages[len(heard) :], key=lambda each: each["role"]):
            said = list(group)
            ids += self._spoken(said, "") if role == "assistant" else self.said(said)
        return ids

    def said(self, messages: Sequence[Message]) -> list[int]:
        """Ids of what others say after a turn of the model that has ended."""
        if self.style == "plain":
            return self.processor.encode_text("".join(message.get("content") or "" for message in messages))
        return self.processor.encode_turn(messages)

    def demonstration(self, told: str | Sequence[Message]) -> tuple[IntArray, BoolArray]:
        """Ids and mask `[T]` of a response to imitate: tools and users are not imitated. Raises `DataError`
        for messages that are no response."""
        if isinstance(told, str):
            ids = self.processor.encode_response(told)
            return np.asarray(ids, np.int64), np.ones(len(ids), np.bool_)
        if not told or told[0]["role"] != "assistant" or told[-1]["role"] != "assistant":
            raise DataError("a demonstration begins and ends with a message of the assistant")
        groups = [(role, list(group)) for role, group in groupby(told, key=lambda each: each["role"])]
        after = [role for role, _ in groups[1:]] + [""]
        parts = [
            (self._spoken(messages, before), True) if role == "assistant" else (self._heard(messages), False)
            for (role, messages), before in zip(groups, after, strict=True)
        ]
        ids_T = np.asarray([token for part, _ in parts for token in part], np.int64)
        mask_T = np.concatenate([np.full(len(part), spoken) for part, spoken in parts])
        return ids_T, mask_T

    def _spoken(self, messages: Sequence[Message], before: str) -> list[int]:
        """A turn ends, unless its tools answer within it."""
        text = "".join(self._written(message) for message in messages)
        within = self.style == "plain" and before == "tool"
        return self.processor.encode_text(text) if within else self.processor.encode_response(text)

    def _written(self, message: Message) -> str:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        written = [self.form.written(call["name"], call["arguments"]) for call in calls]
        return "".join([message.get("content") or "", *written])

    def _heard(self, messages: Sequence[Message]) -> list[int]:
        if self.style == "plain" and messages[0]["role"] == "tool":
            return self.answer([message["content"] for message in messages])
        return self.said(messages)

    def _shortened(self, text: str) -> str:
        ids = self.processor.encode_text(text)
        if len(ids) <= self.max_result_tokens:
            return text
        return self.processor.decode(ids[: self.max_result_tokens]) + _CUT
