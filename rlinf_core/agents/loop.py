"""Generation in turns: what a model calls is done, and it goes on with the answers in its response.

Axes: T response tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from rlinf_core.agents.toolbox import Pending, Result, Toolbox
from rlinf_core.responses import begun_of
from rlinf_core.types import Begun, Request, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_core.agents.turns import Turns
    from rlinf_core.api import RolloutEngine
    from rlinf_core.types import BoolArray


@dataclass
class _Asked:
    """A turn that waits for its tools."""

    request: Request
    sample: Sample
    begun: list[Pending | Result]

    def over(self) -> bool:
        return all(isinstance(each, Result) or each.over() for each in self.begun)


class ToolLoop:
    """Stands before a rollout engine. Tokens that tools wrote are off the mask and have log-probability 0;
    they count towards `sampling.max_new_tokens`.

    Without `overlap` generation waits for tools, so that which rows run beside each other, and with it the
    last bits of log-probabilities, does not depend on time.
    """

    def __init__(
        self, engine: RolloutEngine, toolbox: Toolbox, turns: Turns, *, max_turns: int, overlap: bool
    ) -> None:
        self.engine = engine
        self.toolbox = toolbox
        self.turns = turns
        self.max_turns = max_turns
        self.overlap = overlap
        self._running: dict[tuple[int, int], Request] = {}  # in the engine
        self._ready: deque[Request] = deque()
        self._asked: deque[_Asked] = deque()
        self._finished: list[Sample] = []

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish."""
        for held in (self._running, self._ready, self._asked, self._finished):
            held.clear()  # of a call that was not read to its end
        turn = replace(sampling, stop=(*sampling.stop, *self.turns.stops))
        for samples in self.engine.generate(self._source(iter(requests), sampling), turn):
            for sample in samples:
                self._take(self._running.pop((sample.group, sample.replica)), sample, sampling)
            if not self.overlap:
                self._answer_all(sampling)
            yield from self._leaving()
        yield from self._leaving()

    def _leaving(self) -> Iterator[list[Sample]]:
        finished, self._finished = self._finished, []
        if finished:
            yield finished

    def close(self) -> None:
        """End the tools."""
        self.toolbox.close()

    def _source(self, requests: Iterator[list[Request]], sampling: Sampling) -> Iterator[list[Request]]:
        """What the engine is asked next; an empty list while it has something to do and there is nothing."""
        more = True
        while True:
            while self._asked and (self._asked[0].over() or not (self._running or self._ready or more)):
                self._answer(self._asked.popleft(), sampling)
            if self._ready:
                chunk: list[Request] | None = list(self._ready)
                self._ready.clear()
            elif more:
                chunk = next(requests, None)
                more = chunk is not None
            elif self._running:
                chunk = []
            elif not self._asked:
                return
            else:
                continue
            if chunk is not None:
                self._running.update({(each.group, each.replica): each for each in chunk})
                yield chunk

    def _take(self, request: Request, sample: Sample, sampling: Sampling) -> None:
        """A turn has ended: the last one, or one that calls."""
        heard = np.flatnonzero(~sample.mask)
        start = int(heard[-1]) + 1 if len(heard) else 0
        text = self.turns.processor.decode(sample.response_ids[start:]) if len(heard) else sample.text
        calls = self.turns.form.calls(text) if sample.finish == "stop" else []
        if not calls or _answers(sample.mask) >= self.max_turns:
            self._finish(sample, text if len(heard) else None)
            return
        self._asked.append(_Asked(request, sample, [self.toolbox.begin(call) for call in calls]))

    def _finish(self, sample: Sample, reply: str | None) -> None:
        sample.tool_calls = sample.tool_calls or 0
        sample.reply = reply
        self._finished.append(sample)

    def _answer_all(self, sampling: Sampling) -> None:
        while self._asked:
            self._answer(self._asked.popleft(), sampling)

    def _answer(self, asked: _Asked, sampling: Sampling) -> None:
        """Go on with what the tools say; a response that is full then, or as long as it may be for now, has
        ended."""
        results = self.toolbox.end(asked.begun)
        room = sampling.max_new_tokens - len(asked.sample.response_ids)
        said = self.turns.answer([each.text for each in results])[:room]
        failed = sum(result.failed for result in results)
        begun = answered(begun_of(asked.sample), said, calls=len(results), errors=failed)
        if len(begun.response_ids) < (asked.request.until or sampling.max_new_tokens):
            self._ready.append(replace(asked.request, begun=begun))
        else:
            self._finish(_cut(asked.sample, begun, self.turns), "")


def answered(had: Begun, ids: Sequence[int], calls: int = 0, errors: int = 0) -> Begun:
    """With tokens behind it that the model did not write."""
    length = len(ids)
    mask_T = np.ones(len(had.response_ids), np.bool_) if had.mask is None else had.mask
    return Begun(
        np.concatenate([had.response_ids, np.asarray(ids, np.int64)]),
        np.concatenate([had.logprobs, np.zeros(length, np.float32)]),
        np.concatenate([had.versions, np.repeat(had.versions[-1:], length)]),
        np.concatenate([mask_T, np.zeros(length, np.bool_)]),
        (had.tool_calls or 0) + calls,
        had.tool_errors + errors,
    )


def _cut(sample: Sample, begun: Begun, turns: Turns) -> Sample:
    """A response that ends with what tools say."""
    mixed = not (begun.versions == begun.versions[0]).all()
    return replace(
        sample,
        response_ids=begun.response_ids,
        logprobs=begun.logprobs,
        mask=cast("BoolArray", begun.mask),
        weight_versions=begun.versions if mixed else None,
        finish="length",
        text=turns.processor.decode(begun.response_ids),
        tool_calls=begun.tool_calls,
        tool_errors=begun.tool_errors,
    )


def _answers(mask_T: BoolArray) -> int:
    """How often tools have answered."""
    starts = ~mask_T & np.concatenate([[True], mask_T[:-1]])
    return int(starts.sum())
