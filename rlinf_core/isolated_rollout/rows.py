"""Responses that an engine elsewhere is writing: what came of them so far, and samples of those that ended.

Axes: T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.isolated_rollout.engine import Job
from rlinf_core.responses import begun_of, newly_stopped, sample_of
from rlinf_core.types import Request, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_core.api import TextProcessor
    from rlinf_core.isolated_rollout.link import Made
    from rlinf_core.types import FinishReason

_SEED = (1 << 63) - 1
_ODD = 0x9E3779B97F4A7C15


@dataclass
class Row:
    """One response in the making."""

    request: Request
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, sampling: Sampling) -> Row:
        """With what was drawn before, if the request was interrupted."""
        begun = request.begun
        if begun is None:
            return cls(request, sampling)
        drawn = begun.response_ids.tolist(), begun.logprobs.tolist(), begun.versions.tolist()
        return cls(request, sampling, *drawn)

    def job(self, number: int) -> Job:
        """What is left to do. A response that goes on draws from another seed, as it would else repeat the
        draws that it began with."""
        drawn = len(self.tokens)
        seed = (self.request.seed + _ODD * drawn) & _SEED
        most = (self.request.until or self.sampling.max_new_tokens) - drawn
        least = max(0, min(most, self.sampling.min_new_tokens - drawn))
        return Job(number, [*self.request.prompt.token_ids.tolist(), *self.tokens], seed, most, least)

    def take(self, made: Made, processor: TextProcessor) -> FinishReason | None:
        """Add what was drawn; returns why the response has ended, if it has."""
        before = len(self.tokens)
        progress = made.progress
        self.tokens += [int(token) for token in progress.token_ids]
        self.logprobs += [float(logprob) for logprob in progress.logprobs]
        self.versions += [made.version] * len(progress.token_ids)
        end = self._stop(before, processor) if self.sampling.stop else None
        if end is not None:
            del self.tokens[end:], self.logprobs[end:], self.versions[end:]
            return "stop"
        return progress.finish

    def begun(self) -> Request:
        """The request, to be continued."""
        return replace(self.request, begun=begun_of(self._sample("abort", "")) if self.tokens else None)

    def sample(self, finish: FinishReason, processor: TextProcessor) -> Sample:
        """The response as a whole."""
        return self._sample(finish, processor.decode(self.tokens))

    def _sample(self, finish: FinishReason, text: str) -> Sample:
        ids_T, versions_T = np.array(self.tokens, np.int64), np.array(self.versions, np.int64)
        logprobs_T = np.array(self.logprobs, np.float32)
        return sample_of(self.request, ids_T, logprobs_T, versions_T, finish, text)

    def _stop(self, before: int, processor: TextProcessor) -> int | None:
        """After how many tokens a text that ends the response has appeared; it can only be among the last."""
        window = 4 * max(len(text) for text in self.sampling.stop) + 8
        for end in range(before + 1, len(self.tokens) + 1):
            if newly_stopped(self.tokens[max(0, end - window) : end], self.sampling.stop, processor):
                return end
        return None
