"""Conformance checks of rollout engines, on a model of eight tokens, or the one that the plugin's spec names.

An engine in a process of its own starts once for all checks. Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from rlinf_core.api import LoRAConfig, Model, RolloutEngine, WeightBucket
from rlinf_core.errors import RlinfError
from rlinf_core.plugins import RolloutSpec, plugins
from rlinf_core.testing.fakes import EOS, TinyTextModel
from rlinf_core.testing.subject import CheckSkipped, Subject, expect
from rlinf_core.types import Begun, Prompt, Request, Sample, Sampling

SAMPLING = Sampling(max_new_tokens=12)
LONG = Sampling(max_new_tokens=40)
CUT = 3  # tokens after which a response ends for now
PROMPTS = ([1, 3], [1, 4, 5, 6], [1, 7])
Key = tuple[int, int]

_models: dict[str, Model] = {}
_engines: dict[str, RolloutEngine] = {}


def check_rollouts_requests(subject: Subject) -> None:
    """Every request is answered once, with its group, replica, seed and prompt."""
    requests = _requests()
    samples = _generate(_engine(subject), requests)
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
    requests = _requests()
    samples = _generate(_engine(subject), requests)
    backward = _generate(_engine(subject), requests[::-1])
    _expect_equal(samples, backward, "requests in reversed order")
    alone = _generate(_engine(subject), requests[4:5])
    _expect_equal(alone, {key: samples[key] for key in alone}, "a request alone")
    same_prompt = [samples[0, replica].response_ids.tolist() for replica in range(4)]
    expect(any(each != same_prompt[0] for each in same_prompt), "different seeds all give the same response")


def check_rollouts_end(subject: Subject) -> None:
    """A response ends with the first end id, or at `max_new_tokens`; `finish` says which."""
    for sample in _generate(_engine(subject), _requests(replicas=16)).values():
        ids = sample.response_ids.tolist()
        expect(EOS not in ids[:-1], f"a response goes on after its end id {EOS}: {ids}")
        expect(len(ids) <= SAMPLING.max_new_tokens, f"a response has {len(ids)} tokens, more than asked")
        reason = "stop" if ids[-1] == EOS else "length"
        expect(sample.finish == reason, f"finish is {sample.finish!r} for {ids}; it must be {reason!r}")
        expect(sample.mask.all(), "the mask is False at a token that the policy drew, the end id included")


def check_rollouts_minimum(subject: Subject) -> None:
    """No response is shorter than `min_new_tokens`."""
    sampling = Sampling(max_new_tokens=12, min_new_tokens=6)
    for sample in _generate(_engine(subject), _requests(replicas=16), sampling).values():
        expect(
            len(sample.response_ids) >= 6, f"a response has {len(sample.response_ids)} tokens, not 6 or more"
        )


def check_rollouts_logprobs(subject: Subject) -> None:
    """Log-probabilities are those of the model under the same sampling transform."""
    provides = _spec(subject).provides
    cut = Sampling(
        max_new_tokens=8,
        temperature=0.7,
        top_k=3 if provides.top_k else 0,
        top_p=0.9 if provides.top_p else 1.0,
    )
    for sampling in (SAMPLING, Sampling(max_new_tokens=8, temperature=0.7), cut):
        samples = list(_generate(_engine(subject), _requests(), sampling).values())
        _expect_logprobs(subject, samples, sampling)


def check_rollouts_greedy(subject: Subject) -> None:
    """At temperature 0 the seed does not matter."""
    samples = _generate(_engine(subject), _requests(), Sampling(max_new_tokens=6, temperature=0.0))
    for group in range(len(PROMPTS)):
        texts = {tuple(samples[group, replica].response_ids.tolist()) for replica in range(4)}
        expect(len(texts) == 1, f"greedy responses to one prompt differ: {texts}")


def check_rollouts_versions(subject: Subject) -> None:
    """Samples name the weight version that made them, and new weights change them."""
    engine = _engine(subject, version=3)
    expect(engine.version == 3, f"after loading version 3, `version` is {engine.version}")
    before = _generate(engine, _requests())
    returned = engine.load_weights([_bucket(subject, seed=1, version=4)])
    expect(returned == 4, f"load_weights of version 4 returned {returned}")
    after = _generate(engine, _requests())
    for samples, version in ((before, 3), (after, 4)):
        named = {sample.weight_version for sample in samples.values()}
        expect(named == {version}, f"samples made with version {version} name {named}")
    _expect_logprobs(subject, list(after.values()), SAMPLING, seed=1)
    changed = any(before[key].response_ids.tolist() != after[key].response_ids.tolist() for key in before)
    expect(changed, "new weights change no response; are they used?")


def check_rollouts_streams(subject: Subject) -> None:
    """Several chunks of requests, an empty one among them, are answered."""
    requests = _requests()
    engine = _engine(subject)
    made = list(engine.generate(iter([requests[:3], [], requests[3:]]), SAMPLING))
    expect(sum(map(len, made)) == len(requests), "requests given in several chunks are not all answered")
    expect(not list(engine.generate(iter([]), SAMPLING)), "no request gave a sample")


def check_rollouts_offload(subject: Subject) -> None:
    """After `offload` and `onload` the engine answers as before, and new weights may be loaded."""
    engine = _engine(subject, version=3)
    before = _generate(engine, _requests())
    engine.offload()
    engine.onload()
    _expect_equal(before, _generate(engine, _requests()), "after offload and onload")
    engine.load_weights([_bucket(subject, seed=1, version=4)])
    expected = _generate(engine, _requests())
    engine.offload()
    engine.onload()
    engine.load_weights([_bucket(subject, seed=1, version=5)])
    _expect_equal(expected, _generate(engine, _requests()), "weights loaded after offload and onload")


def check_rollouts_gate(subject: Subject) -> None:
    """Nothing is generated with weights of which a part did not arrive."""
    engine = _engine(subject, version=3)

    def broken() -> Iterator[WeightBucket]:
        tensors = dict(list(_bucket(subject, seed=1, version=4).tensors.items())[:1])
        yield WeightBucket(4, tensors)
        raise ConnectionError("the trainer is gone")

    try:
        engine.load_weights(broken())
    except ConnectionError:
        expect(engine.version == -1, f"after half an update `version` is {engine.version}, not -1")
    else:
        expect(False, "load_weights passes over an error of the buckets")
    try:
        _generate(engine, _requests())
    except RlinfError:
        engine.load_weights([_bucket(subject, seed=1, version=4)])
        samples = list(_generate(engine, _requests()).values())
        _expect_logprobs(subject, samples, SAMPLING, seed=1)
    else:
        expect(False, "responses were generated after half an update")


def check_rollouts_admission(subject: Subject) -> None:
    """Samples come while further requests are still to be asked for."""
    taken = 0
    many = [request for _ in range(200) for request in _requests()[:4]]

    def source() -> Iterator[list[Request]]:
        nonlocal taken
        for begin in range(0, len(many), 4):
            taken += 1
            yield many[begin : begin + 4]

    made = _engine(subject).generate(source(), Sampling(max_new_tokens=2))
    first = next(made)
    expect(first and taken < 200, "all 200 chunks of requests were taken before the first sample came")
    total = len(first) + sum(map(len, made))
    expect(total == len(many), f"{total} answers to {len(many)} requests")


def check_rollouts_texts(subject: Subject) -> None:
    """A text of `stop` ends a response, with the token that completes it."""
    if not _spec(subject).provides.stop_texts:
        raise CheckSkipped("the rollout engine does not stop at texts")
    found = _generate(_engine(subject), _requests(replicas=16))
    text = next(sample.text[1] for sample in found.values() if len(sample.text) > 2)
    stopped = _generate(_engine(subject), _requests(replicas=16), Sampling(max_new_tokens=12, stop=(text,)))
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
    _expect_logprobs(subject, list(stopped.values()), SAMPLING)


def check_rollouts_abort(subject: Subject) -> None:
    """What is interrupted goes on where it was, with the weights of then; each token knows its version."""
    if not _spec(subject).provides.abort:
        raise CheckSkipped("the rollout engine cannot interrupt what it generates")
    engine = _engine(subject, version=3)
    requests = _requests(replicas=8)
    made = engine.generate(iter([requests[:1], *([request] for request in requests[1:])]), LONG)
    answered = [*next(made)]
    left = engine.abort()
    answered += [sample for chunk in made for sample in chunk]
    keys = [(each.group, each.replica) for each in answered] + [(each.group, each.replica) for each in left]
    expect(len(keys) == len(set(keys)), "a request was answered and returned too")
    again = _generate(engine, left, LONG)
    expect(set(again) == {(each.group, each.replica) for each in left}, "not all that was left was answered")
    for request in left:
        if request.begun is not None:
            begun = again[request.group, request.replica].response_ids[: len(request.begun.response_ids)]
            expect(
                begun.tolist() == request.begun.response_ids.tolist(), "a response does not go on as it began"
            )
    _expect_logprobs(subject, list(again.values()), LONG)


def check_rollouts_continues(subject: Subject) -> None:
    """A response that was told to end for now goes on, with other weights; each token knows its version."""
    if not _spec(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    engine = _engine(subject, version=3)
    cut = _generate(engine, [replace(each, until=CUT) for each in _requests()])
    expect(max(len(each.response_ids) for each in cut.values()) == CUT, f"responses go on after {CUT} tokens")
    left = [
        replace(each, begun=_begun(cut[each.group, each.replica]))
        for each in _requests()
        if cut[each.group, each.replica].finish == "length"
    ]
    engine.load_weights([_bucket(subject, seed=1, version=4)])
    for (group, replica), sample in _generate(engine, left).items():
        begun = cut[group, replica].response_ids.tolist()
        expect(sample.response_ids[:CUT].tolist() == begun, "a response does not go on as it began")
        expect(len(sample.response_ids) > CUT, "a response does not go on")
        versions = sample.weight_versions
        expect(
            versions is not None and versions.tolist() == [3] * CUT + [4] * (len(versions) - CUT),
            f"versions of a sample's tokens: {versions}",
        )
        _expect_mixed_logprobs(subject, sample, SAMPLING)


def check_rollouts_turns(subject: Subject) -> None:
    """A response goes on after others have said something: where they wrote stays known, and a stop text that
    stands there already does not end it again."""
    if not _spec(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    engine = _engine(subject)
    found = {
        key: sample for key, sample in _generate(engine, _requests()).items() if len(sample.response_ids) > 3
    }
    stop = next(iter(found.values())).text[:1] if _spec(subject).provides.stop_texts else ""
    asked = [
        replace(
            each,
            begun=replace(_begun(_first(found[key], 3)), mask=np.array([True, False, False]), tool_calls=2),
        )
        for each in _requests()
        if (key := (each.group, each.replica)) in found
    ]
    going = _generate(engine, asked, replace(SAMPLING, stop=(stop,) if stop else ()))
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
    if not _spec(subject).provides.continues:
        raise CheckSkipped("the rollout engine cannot go on with responses that were begun")
    first, *others = _requests()
    answered: list[Sample] = []

    def source() -> Iterator[list[Request]]:
        yield [first]
        while not answered:
            yield []
        yield others
        while len(answered) <= len(others):
            yield []

    for samples in _engine(subject).generate(source(), SAMPLING):
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


def _begun(sample: Sample) -> Begun:
    versions = np.full(len(sample.response_ids), sample.weight_version)
    return Begun(sample.response_ids, sample.logprobs, versions)


def check_rollouts_update(subject: Subject) -> None:
    """Weights that come while responses are written are used from the next token on."""
    if not _spec(subject).provides.abort:
        raise CheckSkipped("the rollout engine cannot interrupt what it generates")
    engine = _engine(subject, version=3)
    few = [Request(each.prompt, each.group, each.replica, each.seed) for each in _requests(replicas=2)]
    short = Sampling(max_new_tokens=40)
    made = engine.generate(iter([few[:5], few[5:]]), short)
    samples = [*next(made)]
    engine.load_weights([_bucket(subject, seed=1, version=4)])
    samples += [sample for chunk in made for sample in chunk]
    expect(len(samples) == len(few), f"{len(samples)} answers to {len(few)} requests around an update")
    for sample in samples:
        versions = sample.weight_versions
        if versions is not None:
            expect(
                sample.weight_version == versions.min() == 3, "a mixed sample must name its oldest version"
            )
            expect((np.diff(versions) >= 0).all(), f"versions of a sample's tokens go back: {versions}")
        _expect_mixed_logprobs(subject, sample, short)


def _spec(subject: Subject) -> RolloutSpec:
    spec = subject.spec
    if not isinstance(spec, RolloutSpec):
        raise TypeError(f"{spec.kind} plugin {spec.name!r} is no rollout engine")
    return spec


def _model(subject: Subject) -> Model:
    """Made once, as its processor may take a while."""
    named = dict(_spec(subject).checked_with)
    if str(named) not in _models:
        if named:
            spec = plugins().get("models", named.pop("name"))
            _models[str(dict(_spec(subject).checked_with))] = spec.load()(spec.config(**named))
        else:
            _models[str(named)] = TinyTextModel(None)
    return _models[str(dict(_spec(subject).checked_with))]


def _engine(subject: Subject, version: int = 0) -> RolloutEngine:
    key = f"{subject.spec.name} {subject.spec.target} {subject.config} {subject.isolated}"
    engine = _engines.get(key)
    if engine is None:
        engine = subject.build(_model(subject), LoRAConfig(), device="cpu", seed=0)
        if subject.spec.isolation is not None:
            _engines[key] = engine
    engine.load_weights([_bucket(subject, seed=0, version=version)])
    return engine


def _bucket(subject: Subject, seed: int, version: int) -> WeightBucket:
    module = _model(subject).module(seed)
    tensors = {name: value.detach() for name, value in module.named_parameters()}
    return WeightBucket(version, tensors, last=True)


@torch.no_grad()
def _expect_logprobs(subject: Subject, samples: list[Sample], sampling: Sampling, seed: int = 0) -> None:
    for sample, expected_T in zip(samples, _logprobs(subject, samples, sampling, seed), strict=True):
        gap = float(np.abs(expected_T - sample.logprobs).max())
        expect(gap < 1e-4, f"log-probabilities differ from the model's by {gap:.2e} under {sampling}")


def _expect_mixed_logprobs(subject: Subject, sample: Sample, sampling: Sampling) -> None:
    """Version 3 has the weights of seed 0, version 4 of seed 1."""
    versions = sample.weight_versions
    old_T = np.full(len(sample.response_ids), sample.weight_version) if versions is None else versions
    by_seed = [_logprobs(subject, [sample], sampling, seed)[0] for seed in (0, 1)]
    gap = float(np.abs(np.where(old_T == 3, *by_seed) - sample.logprobs).max())
    expect(gap < 1e-4, f"log-probabilities differ by {gap:.2e} from those of the versions that tokens name")


@torch.no_grad()
def _logprobs(subject: Subject, samples: list[Sample], sampling: Sampling, seed: int) -> list[np.ndarray]:
    model = _model(subject)
    wanted = frozenset({"logprobs"})
    outputs = model.policy_outputs(model.module(seed), model.collate(samples), wanted, sampling)  # type: ignore[arg-type]
    return [outputs.logprobs_BT[i, : len(sample.response_ids)].numpy() for i, sample in enumerate(samples)]


def _requests(replicas: int = 4) -> list[Request]:
    prompts = [Prompt(index=i, token_ids=np.array(ids), text="") for i, ids in enumerate(PROMPTS)]
    return [
        Request(prompt=prompt, group=prompt.index, replica=replica, seed=1000 * prompt.index + replica)
        for prompt in prompts
        for replica in range(replicas)
    ]


def _generate(
    engine: RolloutEngine, requests: list[Request], sampling: Sampling = SAMPLING
) -> dict[Key, Sample]:
    made = engine.generate(iter([requests]), sampling)
    return {(sample.group, sample.replica): sample for chunk in made for sample in chunk}


def _expect_equal(one: dict[Key, Sample], other: dict[Key, Sample], what: str) -> None:
    for key, sample in one.items():
        expect(
            sample.response_ids.tolist() == other[key].response_ids.tolist(),
            f"{what}: the response of group {key[0]}, replica {key[1]} differs; draw by its seed",
        )
