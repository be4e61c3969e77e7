"""The `vllm` engine in its own environment. Slow: it builds the environment where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import LoRAConfig, Model, WeightBucket
from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolation import build, interpreter
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import plugins
from rlinf_core.testing import parametrize_with_checks
from rlinf_core.testing.checks import checks_of
from rlinf_core.testing.subject import Subject
from rlinf_core.types import Prompt, Request, Sample, Sampling

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
SPEC = plugins().get("rollouts", "vllm")
OLDER = replace(  # another release, in another environment made from another lock
    SPEC,
    name="vllm-0.27",
    isolation=replace(SPEC.isolation, lock="rlinf_backend_vllm/lock-0.27.txt"),
)


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    """Built once, and left there for the next time."""
    build(SPEC)


def model_of(**settings: Any) -> Model:
    spec = plugins().get("models", "hf_lm")
    model: Model = spec.load()(spec.config(**settings))
    return model


def engine_of(model: Model, lora: LoRAConfig | None = None, **settings: Any) -> IsolatedRollout:
    return IsolatedRollout(
        SPEC.config(**{**SPEC.example, **settings}),
        model,
        lora or LoRAConfig(),
        name="vllm",
        target=SPEC.target,
        program=Program.of(SPEC, "always"),
        timeout_s=300.0,
    )


def requests(model: Model, groups: int = 4, replicas: int = 4) -> list[Request]:
    prompts = [f"sort {17 * i}=" for i in range(groups)]
    found = []
    for i, text in enumerate(prompts):
        prompt = Prompt(i, np.array(model.processor().encode_prompt(text)), text)
        found += [Request(prompt, i, replica, 100 * i + replica) for replica in range(replicas)]
    return found


def collect(made: Iterator[list[Sample]]) -> list[Sample]:
    return sorted((sample for chunk in made for sample in chunk), key=lambda s: (s.group, s.replica))


@torch.no_grad()
def gap(model: Model, module: Any, samples: list[Sample], sampling: Sampling) -> float:
    """Between log-probabilities of the engine and of the trainer's module, at most."""
    outputs = model.policy_outputs(module, model.collate(samples), frozenset({"logprobs"}), sampling)
    gaps = [
        float(np.abs(outputs.logprobs_BT[i, : len(s.response_ids)].numpy() - s.logprobs).max())
        for i, s in enumerate(samples)
    ]
    return max(gaps)


@parametrize_with_checks("rollouts", "vllm", isolated=True)
def test_vllm_keeps_the_contract_of_rollout_engines(check):
    check()


@pytest.mark.parametrize("check", checks_of("rollouts"), ids=lambda check: check.__name__)
def test_the_older_release_keeps_it_too(check: Callable[[Subject], None]) -> None:
    if os.environ.get("RLINF_OLDER_VLLM"):
        build(OLDER)
    if interpreter(OLDER) is None:
        pytest.skip(f"the environment of {OLDER.name} is not installed; RLINF_OLDER_VLLM=1 builds it")
    check(Subject(OLDER, OLDER.config(**OLDER.example), isolated=True))


@pytest.mark.parametrize(
    ("dtype", "sampling", "bound"),
    [
        (
            "float32",
            Sampling(max_new_tokens=24, temperature=0.8, top_p=0.9, top_k=40, min_new_tokens=6),
            2e-5,
        ),
        ("bfloat16", Sampling(24), 0.05),
    ],
    ids=["float32", "bfloat16"],
)
def test_log_probabilities_are_the_trainers_within_the_stated_bounds(
    dtype: str, sampling: Sampling, bound: float
) -> None:
    model = model_of(preset="tiny-qwen3")
    module = model.module(0)
    engine = engine_of(model, dtype=dtype)
    try:
        engine.load_weights([WeightBucket(1, dict(module.named_parameters()), last=True)])
        assert engine.verified == len(dict(module.named_parameters()))
        samples = collect(engine.generate([requests(model)], sampling))
    finally:
        engine.close()
    assert len(samples) == 16
    assert gap(model, module, samples, sampling) < bound


def test_adapters_change_with_every_update_and_the_base_stays() -> None:
    lora = LoRAConfig(rank=4, alpha=8.0)
    backend = plugins().get("backends", "fsdp")
    model = model_of(preset="tiny-qwen2")
    module = backend.load()(backend.config()).acting_module(model, lora, 0)
    engine = engine_of(model, lora)
    sampling = Sampling(max_new_tokens=16)
    texts = []
    try:
        for version in range(3):
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if "lora_" in name:
                        parameter.normal_(0, 0.05 * version, generator=torch.Generator().manual_seed(version))
            sent = {n: p for n, p in module.named_parameters() if version == 0 or p.requires_grad}
            engine.load_weights([WeightBucket(version, sent, last=True)])
            samples = collect(engine.generate([requests(model)], sampling))
            texts.append([sample.text for sample in samples])
            assert gap(model, module, samples, sampling) < 1e-4
            assert {sample.weight_version for sample in samples} == {version}
    finally:
        engine.close()
    assert len({tuple(each) for each in texts}) == 3


SHARED = [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}]


@pytest.mark.parametrize("sizes", SHARED, ids=["tensor", "pipeline"])
def test_two_processes_share_the_model(sizes: dict[str, int]) -> None:
    model = model_of(preset="tiny-qwen2")
    module = model.module(5)
    engine = engine_of(model, **sizes)
    sampling = Sampling(max_new_tokens=8)
    try:
        for version, scale in ((1, 1.0), (2, 1.5)):
            tensors = {name: scale * p.detach() for name, p in module.named_parameters()}
            engine.load_weights([WeightBucket(version, tensors, last=True)])
            assert engine.verified == len(tensors)
        samples = collect(engine.generate([requests(model)], sampling))
    finally:
        engine.close()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    assert gap(model, module, samples, sampling) < 1e-4


@pytest.mark.parametrize("sizes", SHARED, ids=["tensor", "pipeline"])
@pytest.mark.parametrize("check", checks_of("rollouts"), ids=lambda check: check.__name__)
def test_two_processes_keep_the_contract_too(check: Callable[[Subject], None], sizes: dict[str, int]) -> None:
    check(Subject(SPEC, SPEC.config(**SPEC.example, **sizes), isolated=True))


def test_what_cannot_be_served_is_said_at_the_start() -> None:
    with pytest.raises(ModelError, match=r"LlamaForCausalLM, heads of 16\): .*head_dim=16"):
        engine_of(model_of(preset="char-llama"))
    with pytest.raises(ConfigError, match=r"rollout.cache_gb \(vllm\): the engine would take 9000.0 GiB"):
        engine_of(model_of(preset="tiny-qwen2"), cache_gb=9000)
