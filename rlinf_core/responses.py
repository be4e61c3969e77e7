"""Responses as rollout engines make them: samples, beginnings of longer ones, and where they stop.

Axes: T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.types import Begun, Sample

if TYPE_CHECKING:
    from rlinf_core.api import TextProcessor
    from rlinf_core.types import FinishReason, FloatArray, IntArray, Request


def sample_of(
    request: Request,
    response_ids: IntArray,
    logprobs: FloatArray,
    versions: IntArray,
    finish: FinishReason,
    text: str,
) -> Sample:
    """What an engine gives for a request. The arrays `[T]` are of the whole response, with what was begun, of
    which the mask and the counts are kept."""
    mask_T = np.ones(len(response_ids), np.bool_)
    begun = request.begun
    if begun is not None and begun.mask is not None:
        mask_T[: len(begun.mask)] = begun.mask
    return Sample(
        group=request.group,
        replica=request.replica,
        seed=request.seed,
        mask=mask_T,
        logprobs=logprobs,
        weight_version=int(versions.min()),
        weight_versions=None if (versions == versions[0]).all() else versions,
        finish=finish,
        prompt=request.prompt,
        response_ids=response_ids,
        text=text,
        tool_calls=None if begun is None else begun.tool_calls,
        tool_errors=0 if begun is None else begun.tool_errors,
    )


def newly_stopped(tail: Sequence[int] | IntArray, stop: Sequence[str], processor: TextProcessor) -> bool:
    """Whether the last of these tokens ends a response: with it a stop text has appeared. One may stand there
    already where a response goes on after it."""
    text = processor.decode(tail)
    if not any(each in text for each in stop):
        return False
    before = processor.decode(tail[:-1])
    return any(text.count(each) > before.count(each) for each in stop)


def begun_of(sample: Sample) -> Begun:
    """A response as the beginning of a longer one."""
    versions_T = sample.weight_versions
    if versions_T is None:
        versions_T = np.full(len(sample.response_ids), sample.weight_version, dtype=np.int64)
    return Begun(
        sample.response_ids,
        sample.logprobs,
        versions_T,
        None if sample.mask.all() else sample.mask,
        sample.tool_calls,
        sample.tool_errors,
    )
