"""What conformance checks of rollout engines ask, and whom."""

from __future__ import annotations

import numpy as np
import torch

from rlinf_core.api import LoRAConfig, Model, RolloutEngine, WeightBucket
from rlinf_core.plugins import RolloutSpec, plugins
from rlinf_core.testing.fakes import TinyTextModel
from rlinf_core.testing.subject import Subject, expect
from rlinf_core.types import Prompt, Request, Sample, Sampling

SAMPLING = Sampling(max_new_tokens=12)
LONG = Sampling(max_new_tokens=40)
CUT = 3  # tokens after which a response ends for now
PROMPTS = ([1, 3], [1, 4, 5, 6], [1, 7])
Key = tuple[int, int]

_models: dict[str, Model] = {}
_engines: dict[str, RolloutEngine] = {}


def spec_of(subject: Subject) -> RolloutSpec:
    spec = subject.spec
    if not isinstance(spec, RolloutSpec):
        raise TypeError(f"{spec.kind} plugin {spec.name!r} is no rollout engine")
    return spec


def model_of(subject: Subject) -> Model:
    """Made once, as its processor may take a while."""
    named = dict(spec_of(subject).checked_with)
    if str(named) not in _models:
        if named:
            spec = plugins().get("models", named.pop("name"))
            _models[str(dict(spec_of(subject).checked_with))] = spec.load()(spec.config(**named))
        else:
            _models[str(named)] = TinyTextModel(None)
    return _models[str(dict(spec_of(subject).checked_with))]


def engine_of(subject: Subject, version: int = 0) -> RolloutEngine:
    key = f"{subject.spec.name} {subject.spec.target} {subject.config} {subject.isolated}"
    engine = _engines.get(key)
    if engine is None:
        engine = subject.build(model_of(subject), LoRAConfig(), device="cpu", seed=0)
        if subject.spec.isolation is not None:
            _engines[key] = engine
    engine.load_weights([bucket_of(subject, seed=0, version=version)])
    return engine


def bucket_of(subject: Subject, seed: int, version: int) -> WeightBucket:
    module = model_of(subject).module(seed)
    tensors = {name: value.detach() for name, value in module.named_parameters()}
    return WeightBucket(version, tensors, last=True)


@torch.no_grad()
def expect_logprobs(subject: Subject, samples: list[Sample], sampling: Sampling, seed: int = 0) -> None:
    for sample, expected_T in zip(samples, logprobs_of(subject, samples, sampling, seed), strict=True):
        gap = float(np.abs(expected_T - sample.logprobs).max())
        expect(gap < 1e-4, f"log-probabilities differ from the model's by {gap:.2e} under {sampling}")


def expect_mixed_logprobs(subject: Subject, sample: Sample, sampling: Sampling) -> None:
    """Version 3 has the weights of seed 0, version 4 of seed 1."""
    versions = sample.weight_versions
    old_T = np.full(len(sample.response_ids), sample.weight_version) if versions is None else versions
    by_seed = [logprobs_of(subject, [sample], sampling, seed)[0] for seed in (0, 1)]
    gap = float(np.abs(np.where(old_T == 3, *by_seed) - sample.logprobs).max())
    expect(gap < 1e-4, f"log-probabilities differ by {gap:.2e} from those of the versions that tokens name")


@torch.no_grad()
def logprobs_of(subject: Subject, samples: list[Sample], sampling: Sampling, seed: int) -> list[np.ndarray]:
    model = model_of(subject)
    wanted = frozenset({"logprobs"})
    outputs = model.policy_outputs(model.module(seed), model.collate(samples), wanted, sampling)  # type: ignore[arg-type]
    return [outputs.logprobs_BT[i, : len(sample.response_ids)].numpy() for i, sample in enumerate(samples)]


def some_requests(replicas: int = 4) -> list[Request]:
    prompts = [Prompt(index=i, token_ids=np.array(ids), text="") for i, ids in enumerate(PROMPTS)]
    return [
        Request(prompt=prompt, group=prompt.index, replica=replica, seed=1000 * prompt.index + replica)
        for prompt in prompts
        for replica in range(replicas)
    ]


def generated(
    engine: RolloutEngine, requests: list[Request], sampling: Sampling = SAMPLING
) -> dict[Key, Sample]:
    made = engine.generate(iter([requests]), sampling)
    return {(sample.group, sample.replica): sample for chunk in made for sample in chunk}


def expect_equal(one: dict[Key, Sample], other: dict[Key, Sample], what: str) -> None:
    for key, sample in one.items():
        expect(
            sample.response_ids.tolist() == other[key].response_ids.tolist(),
            f"{what}: the response of group {key[0]}, replica {key[1]} differs; draw by its seed",
        )
