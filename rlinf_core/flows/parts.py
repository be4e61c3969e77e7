"""Responses that are made in parts, while the weights that make them are renewed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rlinf_core.responses import begun_of
from rlinf_core.types import Request, Sample

if TYPE_CHECKING:
    from rlinf_core.flows.flow import Played
    from rlinf_core.flows.reasoning import ReasoningFlow


@dataclass
class Open:
    """The responses of one step: those that go on, and those that have ended."""

    going: list[Request]
    whole: list[Sample] = field(default_factory=list)


class Parts:
    """Spreads the tokens of a step's responses evenly over the `lag` steps before it.

    The responses of all steps that are open go on together, each for its share of `tokens`; those of the next
    step to its end. Which weights draw which token is counted in tokens, so that it does not depend on time.
    """

    def __init__(self, tokens: int, lag: int) -> None:
        self.tokens = tokens
        self.share = tokens // lag
        self.open: dict[int, Open] = {}

    def until(self, step: int, now: int) -> int:
        """Tokens that responses of a step have after the part that is made while step `now` is trained; 0 =
        as many as they may have."""
        left = step - 1 - now
        return max(1, self.tokens - self.share * left) if left > 0 else 0

    def begin(self, step: int, groups: Iterable[list[Request]]) -> None:
        """Take the requests of one more step."""
        self.open[step] = Open([request for group in groups for request in group])

    def go_on(self, flow: ReasoningFlow, now: int) -> dict[int, Played]:
        """Make the next part of all that is open; returns steps whose responses have ended, scored."""
        asked = []
        for step, each in self.open.items():
            until = self.until(step, now)
            told = [replace(request, until=until) for request in each.going]
            asked += [request for request in told if not until or _length(request) < until]
        made = {(sample.group, sample.replica): sample for sample in flow.respond(asked)}
        self.open = {step: self._taken(each, made) for step, each in self.open.items()}
        ended = [step for step, each in self.open.items() if not each.going]
        return {step: flow.judge(self.open.pop(step).whole) for step in ended}

    def _taken(self, each: Open, made: Mapping[tuple[int, int], Sample]) -> Open:
        going, whole = [], list(each.whole)
        for request in each.going:
            sample = made.get((request.group, request.replica))
            if sample is None:
                going.append(request)
            elif sample.finish == "length" and len(sample.response_ids) < self.tokens:
                going.append(replace(request, begun=begun_of(sample)))
            else:
                whole.append(sample)
        return Open(going, whole)


def _length(request: Request) -> int:
    return 0 if request.begun is None else len(request.begun.response_ids)
