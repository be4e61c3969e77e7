"""Conformance checks of rollout engines, on a model of eight tokens. Axes: B rows, T tokens."""

from __future__ import annotations

import numpy as np
import torch

from rlinf_core.api import LoRAConfig, RolloutEngine, WeightBucket
from rlinf_core.testing.fakes import EOS, TinyTextModel
from rlinf_core.testing.subject import Subject, expect
from rlinf_core.types import Prompt, Request, Sample, Sampling

SAMPLING = Sampling(max_new_tokens=12)
PROMPTS = ([1, 3], [1, 4, 5, 6], [1, 7])
Key = tuple[int, int]


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


@torch.no_grad()
def check_rollouts_logprobs(subject: Subject) -> None:
    """Log-probabilities are those of the model under the same sampling transform."""
    model = TinyTextModel(None)
    for sampling in (SAMPLING, Sampling(max_new_tokens=8, temperature=0.7)):
        samples = list(_generate(_engine(subject), _requests(), sampling).values())
        outputs = model.policy_outputs(
            model.module(0), model.collate(samples), frozenset({"logprobs"}), sampling
        )
        for i, sample in enumerate(samples):
            expected_T = outputs.logprobs_BT[i, : len(sample.response_ids)].numpy()
            gap = float(np.abs(expected_T - sample.logprobs).max())
            expect(gap < 1e-4, f"log-probabilities differ from the model's by {gap:.2e} under {sampling}")


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
    returned = engine.load_weights([_bucket(seed=1, version=4)])
    expect(returned == 4, f"load_weights of version 4 returned {returned}")
    after = _generate(engine, _requests())
    for samples, version in ((before, 3), (after, 4)):
        named = {sample.weight_version for sample in samples.values()}
        expect(named == {version}, f"samples made with version {version} name {named}")
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
    engine.load_weights([_bucket(seed=1, version=4)])
    expected = _generate(engine, _requests())
    engine.offload()
    engine.onload()
    engine.load_weights([_bucket(seed=1, version=5)])
    _expect_equal(expected, _generate(engine, _requests()), "weights loaded after offload and onload")


def _engine(subject: Subject, version: int = 0) -> RolloutEngine:
    engine: RolloutEngine = subject.build(TinyTextModel(None), LoRAConfig(), device="cpu", seed=0)
    engine.load_weights([_bucket(seed=0, version=version)])
    return engine


def _bucket(seed: int, version: int) -> WeightBucket:
    tensors = {name: value.detach() for name, value in TinyTextModel(None).module(seed).named_parameters()}
    return WeightBucket(version, tensors, last=True)


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
