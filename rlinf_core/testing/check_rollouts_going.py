"""Conformance checks of engines that go on with responses, or interrupt them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlinf_core.responses import begun_of
from rlinf_core.testing.rollout_parts import (
    CUT,
    LONG,
    SAMPLING,
    bucket_of,
    engine_of,
    expect_logprobs,
    expect_mixed_logprobs,
    generated,
    some_requests,
    spec_of,
)
from rlinf_core.testing.subject import CheckSkipped, Subject, expect
from rlinf_core.types import Request, Sample, Sampling


def check_rollouts_abort(subject: Subject) -> None:
    """What is interrupted goes on where it was, with the weights of then; each token knows its version."""
    if not spec_of(subject).provides.abort:
        raise CheckSkipped("the rollout engine cannot interrupt what it generates")
    engine = engine_of(subject, version=3)
    requests = some_requests(replicas=8)
    made = engine.generate(iter([requests[:1], *([request] for request in requests[1:])]), LONG)
    answered = [*next(made)]
    left = engine.abort()
    answered += [sample for chunk in made for sample in chunk]
    keys = [(each.group, each.replica) for each in answered] + [(each.group, each.replica) for each in left]
    expect(len(keys) == len(set(keys)), "a request was answered and returned too")
    again = generated(engine, left, LONG)
    expect(set(again) == {(each.group, each.replica) for each in left}, "not all that was left was answered")
    for request in left:
        if request.begun is not None:
            begun = again[request.group, request.replica].response_ids[: len(request.begun.response_ids)]
            expect(
                begun.tolist() == request.begun.response_ids.tolist(), "a response does not go on as it began"
            )
    expect_logprobs(subject, list(again.values()), LONG)


def check_rollouts_continues(subject: Subject) -> None:
    """A response that was told to end for now goes on, with other weights; each token knows its version."""
    if not spec_of(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    engine = engine_of(subject, version=3)
    cut = generated(engine, [replace(each, until=CUT) for each in some_requests()])
    expect(max(len(each.response_ids) for each in cut.values()) == CUT, f"responses go on after {CUT} tokens")
    left = [
        replace(each, begun=begun_of(cut[each.group, each.replica]))
        for each in some_requests()
        if cut[each.group, each.replica].finish == "length"
    ]
    engine.load_weights([bucket_of(subject, seed=1, version=4)])
    for (group, replica), sample in generated(engine, left).items():
        begun = cut[group, replica].response_ids.tolist()
        expect(sample.response_ids[:CUT].tolist() == begun, "a response does not go on as it began")
        expect(len(sample.response_ids) > CUT, "a response does not go on")
        versions = sample.weight_versions
        expect(
            versions is not None and versions.tolist() == [3] * CUT + [4] * (len(versions) - CUT),
            f"versions of a sample's tokens: {versions}",
        )
        expect_mixed_logprobs(subject, sample, SAMPLING)


def check_rollouts_turns(subject: Subject) -> None:
    """A response goes on after others have said something: where they wrote stays known, and a stop text that
    stands there already does not end it again."""
    if not spec_of(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    engine = engine_of(subject)
    found = {
        key: sample
        for key, sample in generated(engine, some_requests()).items()
        if len(sample.response_ids) > 3
    }
    stop = next(iter(found.values())).text[:1] if spec_of(subject).provides.stop_texts else ""
    asked = [
        replace(
            each,
            begun=replace(begun_of(_first(found[key], 3)), mask=np.array([True, False, False]), tool_calls=2),
        )
        for each in some_requests()
        if (key := (each.group, each.replica)) in found
    ]
    going = generated(engine, asked, replace(SAMPLING, stop=(stop,) if stop else ()))
    for key, sample in going.items():
        expect(
            sample.mask[:3].tolist() == [True, False, False] and bool(sample.mask[3:].all()),
            f"the mask of a response that goes on is {sample.mask.tolist()}; keep that of what was begun",
        )
        expect(sample.tool_calls == 2, "a response that goes on forgets how often tools were called")
        ids = found[key].response_ids[:3].tolist()
        expect(sample.response_ids[:3].tolist() == ids, "a response does not go on as it began")
        expect(
            len(sample.response_ids) > 3, "a response ends at once, by a stop text that stood there before"
        )


def check_rollouts_pauses(subject: Subject) -> None:
    """An empty list of requests says that there is none at the moment: generation goes on, and asks again."""
    if not spec_of(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    first, *others = some_requests()
    answered: list[Sample] = []

    def source() -> Iterator[list[Request]]:
        yield [first]
        while not answered:
            yield []
        yield others
        while len(answered) <= len(others):
            yield []

    for samples in engine_of(subject).generate(source(), SAMPLING):
        answered += samples
    expect(
        len(answered) == 1 + len(others), f"{len(answered)} answers to {1 + len(others)} requests with pauses"
    )


def _first(sample: Sample, count: int) -> Sample:
    """Its first tokens."""
    return replace(
        sample,
        response_ids=sample.response_ids[:count],
        logprobs=sample.logprobs[:count],
        mask=sample.mask[:count],
    )


def check_rollouts_update(subject: Subject) -> None:
    """Weights that come while responses are written are used from the next token on."""
    if not spec_of(subject).provides.abort:
        raise CheckSkipped("the rollout engine cannot interrupt what it generates")
    engine = engine_of(subject, version=3)
    few = [Request(each.prompt, each.group, each.replica, each.seed) for each in some_requests(replicas=2)]
    short = Sampling(max_new_tokens=40)
    made = engine.generate(iter([few[:5], few[5:]]), short)
    samples = [*next(made)]
    engine.load_weights([bucket_of(subject, seed=1, version=4)])
    samples += [sample for chunk in made for sample in chunk]
    expect(len(samples) == len(few), f"{len(samples)} answers to {len(few)} requests around an update")
    for sample in samples:
        versions = sample.weight_versions
        if versions is not None:
            expect(
                sample.weight_version == versions.min() == 3, "a mixed sample must name its oldest version"
            )
            expect((np.diff(versions) >= 0).all(), f"versions of a sample's tokens go back: {versions}")
        expect_mixed_logprobs(subject, sample, short)
