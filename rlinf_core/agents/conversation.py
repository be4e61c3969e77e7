"""What an outside agent and the model have said to each other, as tokens.

Axes: T tokens of a response with everything that was said after its first prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.agents.loop import answered
from rlinf_core.responses import begun_of

if TYPE_CHECKING:
    from rlinf_core.agents.turns import Turns
    from rlinf_core.types import Begun, IntArray, Message, Sample


@dataclass(eq=False)
class Branch:
    """Messages of which each call repeated those before, and the tokens that they are."""

    prompt_ids: IntArray
    messages: list[Message]  # all, the model's among them
    sample: Sample | None = None  # after the last turn of the model

    @property
    def spoken(self) -> int:
        """Tokens of the model."""
        return 0 if self.sample is None else int(self.sample.mask.sum())

    def goes_on(self, messages: Sequence[Message]) -> bool:
        """Whether a call repeats what was said here, and says more."""
        had = len(self.messages)
        return len(messages) > had and all(
            same(one, other) for one, other in zip(self.messages, messages, strict=False)
        )


@dataclass
class Conversation:
    """One episode of an agent: a branch, or several where it begins anew or rewrites what was said."""

    turns: Turns
    branches: list[Branch] = field(default_factory=list)

    def ask(self, messages: Sequence[Message]) -> tuple[Branch, Begun | None]:
        """The branch that a call belongs to, and what of it the model's next turn continues."""
        for branch in reversed(self.branches):
            if branch.sample is not None and branch.goes_on(messages):
                said = self.turns.said(messages[len(branch.messages) :])
                branch.messages = list(messages)
                return branch, answered(begun_of(branch.sample), said)
        ids = np.asarray(self.turns.opening(messages), np.int64)
        branch = Branch(ids, list(messages))
        self.branches.append(branch)
        return branch, None

    def longest(self) -> Branch | None:
        """That in which the model said most: the one that is trained."""
        spoken = [branch for branch in self.branches if branch.sample is not None]
        return max(spoken, key=lambda branch: branch.spoken) if spoken else None


def same(one: Message, other: Message) -> bool:
    """Whether messages say the same, however their calls of tools are written."""
    return one.get("role") == other.get("role") and _said(one) == _said(other)


def _said(message: Message) -> tuple[str, list[tuple[str, str]]]:
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    functions = [call.get("function", {}) for call in calls]
    named = [(str(each.get("name")), _canonical(each.get("arguments"))) for each in functions]
    return content_of(message), named


def _canonical(arguments: Any) -> str:  # Any: JSON, or a text that holds some
    try:
        told = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    return json.dumps(told, sort_keys=True)


def content_of(message: Message) -> str:
    """Its text, which may come in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
