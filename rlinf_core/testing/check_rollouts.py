"""Conformance checks of rollout engines, on a model of eight tokens, or the one that the plugin's spec names.

An engine in a process of its own starts once for all checks. Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_core.api import WeightBucket
from rlinf_core.errors import RlinfError
from rlinf_core.testing.check_rollouts_going import (
    check_rollouts_abort,
    check_rollouts_continues,
    check_rollouts_pauses,
    check_rollouts_turns,
    check_rollouts_update,
)
from rlinf_core.testing.fakes import EOS
from rlinf_core.testing.rollout_parts import (
    PROMPTS,
    SAMPLING,
    bucket_of,
    engine_of,
    expect_equal,
    expect_logprobs,
    generated,
    some_requests,
    spec_of,
)
from rlinf_core.testing.subject import CheckSkipped, Subject, expect
from rlinf_core.types import Request, Sampling

__all__ = [
    "check_rollouts_abort",
    "check_rollouts_continues",
    "check_rollouts_pauses",
    "check_rollouts_turns",
    "check_rollouts_update",
]


def check_rollouts_requests(subject: Subject) -> None:
    """Every request is answered once, with its group, replica, seed and prompt."""
    requests = some_requests()
    samples = generated(engine_of(subject), requests)
    expect(len(samples) == len(requests), f"{len(samples)} answers to {len(requests)} requests")
    for request in requests:
        sample = samples[request.group, request.replica]
        expect(sample.seed == request.seed, "a sample does not carry its request's seed")
        expect(sample.prompt.index == request.prompt.index, "a sample does not carry its request's prompt")
        sizes = {len(sample.response_ids), len(sample.mask), len(sample.logprobs)}
        expect(
            len(sizes) == 1, f"response_ids, mask and logprobs of a sample have different lengths: {sizes}"
        )


def check_rollouts_seeds(subject: Subject) -> None:
    """A response depends on its seed, prompt and weights alone, not on order or neighbours."""
    requests = some_requests()
    samples = generated(engine_of(subject), requests)
    backward = generated(engine_of(subject), requests[::-1])
    expect_equal(samples, backward, "requests in reversed order")
    alone = generated(engine_of(subject), requests[4:5])
    expect_equal(alone, {key: samples[key] for key in alone}, "a request alone")
    same_prompt = [samples[0, replica].response_ids.tolist() for replica in range(4)]
    expect(any(each != same_prompt[0] for each in same_prompt), "different seeds all give the same response")


def check_rollouts_end(subject: Subject) -> None:
    """A response ends with the first end id, or at `max_new_tokens`; `finish` says which."""
    for sample in generated(engine_of(subject), some_requests(replicas=16)).values():
        ids = sample.response_ids.tolist()
        expect(EOS not in ids[:-1], f"a response goes on after its end id {EOS}: {ids}")
        expect(len(ids) <= SAMPLING.max_new_tokens, f"a response has {len(ids)} tokens, more than asked")
        reason = "stop" if ids[-1] == EOS else "length"
        expect(sample.finish == reason, f"finish is {sample.finish!r} for {ids}; it must be {reason!r}")
        expect(sample.mask.all(), "the mask is False at a token that the policy drew, the end id included")


def check_rollouts_minimum(subject: Subject) -> None:
    """No response is shorter than `min_new_tokens`."""
    sampling = Sampling(max_new_tokens=12, min_new_tokens=6)
    for sample in generated(engine_of(subject), some_requests(replicas=16), sampling).values():
        expect(
            len(sample.response_ids) >= 6, f"a response has {len(sample.response_ids)} tokens, not 6 or more"
        )


def check_rollouts_logprobs(subject: Subject) -> None:
    """Log-probabilities are those of the model under the same sampling transform."""
    provides = spec_of(subject).provides
    cut = Sampling(
        max_new_tokens=8,
        temperature=0.7,
        top_k=3 if provides.top_k else 0,
        top_p=0.9 if provides.top_p else 1.0,
    )
    for sampling in (SAMPLING, Sampling(max_new_tokens=8, temperature=0.7), cut):
        samples = list(generated(engine_of(subject), some_requests(), sampling).values())
        expect_logprobs(subject, samples, sampling)


def check_rollouts_greedy(subject: Subject) -> None:
    """At temperature 0 the seed does not matter."""
    samples = generated(engine_of(subject), some_requests(), Sampling(max_new_tokens=6, temperature=0.0))
    for group in range(len(PROMPTS)):
        texts = {tuple(samples[group, replica].response_ids.tolist()) for replica in range(4)}
        expect(len(texts) == 1, f"greedy responses to one prompt differ: {texts}")


def check_rollouts_versions(subject: Subject) -> None:
    """Samples name the weight version that made them, and new weights change them."""
    engine = engine_of(subject, version=3)
    expect(engine.version == 3, f"after loading version 3, `version` is {engine.version}")
    before = generated(engine, some_requests())
    returned = engine.load_weights([bucket_of(subject, seed=1, version=4)])
    expect(returned == 4, f"load_weights of version 4 returned {returned}")
    after = generated(engine, some_requests())
    for samples, version in ((before, 3), (after, 4)):
        named = {sample.weight_version for sample in samples.values()}
        expect(named == {version}, f"samples made with version {version} name {named}")
    expect_logprobs(subject, list(after.values()), SAMPLING, seed=1)
    changed = any(before[key].response_ids.tolist() != after[key].response_ids.tolist() for key in before)
    expect(changed, "new weights change no response; are they used?")


def check_rollouts_streams(subject: Subject) -> None:
    """Several chunks of requests, an empty one among them, are answered."""
    requests = some_requests()
    engine = engine_of(subject)
    made = list(engine.generate(iter([requests[:3], [], requests[3:]]), SAMPLING))
    expect(sum(map(len, made)) == len(requests), "requests given in several chunks are not all answered")
    expect(not list(engine.generate(iter([]), SAMPLING)), "no request gave a sample")


def check_rollouts_offload(subject: Subject) -> None:
    """After `offload` and `onload` the engine answers as before, and new weights may be loaded."""
    engine = engine_of(subject, version=3)
    before = generated(engine, some_requests())
    engine.offload()
    engine.onload()
    expect_equal(before, generated(engine, some_requests()), "after offload and onload")
    engine.load_weights([bucket_of(subject, seed=1, version=4)])
    expected = generated(engine, some_requests())
    engine.offload()
    engine.onload()
    engine.load_weights([bucket_of(subject, seed=1, version=5)])
    expect_equal(expected, generated(engine, some_requests()), "weights loaded after offload and onload")


def check_rollouts_gate(subject: Subject) -> None:
    """Nothing is generated with weights of which a part did not arrive."""
    engine = engine_of(subject, version=3)

    def broken() -> Iterator[WeightBucket]:
        tensors = dict(list(bucket_of(subject, seed=1, version=4).tensors.items())[:1])
        yield WeightBucket(4, tensors)
        raise ConnectionError("the trainer is gone")

    try:
        engine.load_weights(broken())
    except ConnectionError:
        expect(engine.version == -1, f"after half an update `version` is {engine.version}, not -1")
    else:
        expect(False, "load_weights passes over an error of the buckets")
    try:
        generated(engine, some_requests())
    except RlinfError:
        engine.load_weights([bucket_of(subject, seed=1, version=4)])
        samples = list(generated(engine, some_requests()).values())
        expect_logprobs(subject, samples, SAMPLING, seed=1)
    else:
        expect(False, "responses were generated after half an update")


def check_rollouts_admission(subject: Subject) -> None:
    """Samples come while further requests are still to be asked for."""
    taken = 0
    many = [request for _ in range(200) for request in some_requests()[:4]]

    def source() -> Iterator[list[Request]]:
        nonlocal taken
        for begin in range(0, len(many), 4):
            taken += 1
            yield many[begin : begin + 4]

    made = engine_of(subject).generate(source(), Sampling(max_new_tokens=2))
    first = next(made)
    expect(first and taken < 200, "all 200 chunks of requests were taken before the first sample came")
    total = len(first) + sum(map(len, made))
    expect(total == len(many), f"{total} answers to {len(many)} requests")


def check_rollouts_texts(subject: Subject) -> None:
    """A text of `stop` ends a response, with the token that completes it."""
    if not spec_of(subject).provides.stop_texts:
        raise CheckSkipped("the rollout engine does not stop at texts")
    found = generated(engine_of(subject), some_requests(replicas=16))
    text = next(sample.text[1] for sample in found.values() if len(sample.text) > 2)
    stopped = generated(
        engine_of(subject), some_requests(replicas=16), Sampling(max_new_tokens=12, stop=(text,))
    )
    for key, sample in stopped.items():
        whole = found[key].response_ids.tolist()
        ids = sample.response_ids.tolist()
        expect(ids == whole[: len(ids)], f"a response that may end with {text!r} begins otherwise")
        if text in sample.text:
            expect(
                sample.finish == "stop", f"finish is {sample.finish!r} for a response that ends with {text!r}"
            )
            expect(sample.text.index(text) == len(sample.text) - 1, f"{sample.text!r} goes on after {text!r}")
        else:
            expect(text not in found[key].text, f"{found[key].text!r} was cut before {text!r}")
    expect_logprobs(subject, list(stopped.values()), SAMPLING)
