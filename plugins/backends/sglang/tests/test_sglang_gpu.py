"""A test of SGLang itself, on a CUDA device, in the environment of its lock; and of the double, so that it is
known to be one that can pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rlinf_backend_sglang.config import SGLangConfig

from rlinf_core.api import LoRAConfig, Model, WeightBucket
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolation import build
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import plugins
from rlinf_core.types import Prompt, Request, Sample, Sampling

SAMPLING = Sampling(max_new_tokens=24, temperature=0.8)
GAP = 0.1  # between log-probabilities in bfloat16, of two implementations
ENGINES = (
    pytest.param("double", marks=pytest.mark.slow),
    pytest.param("sglang", marks=pytest.mark.gpu),
)


@pytest.fixture(scope="module")
def model() -> Model:
    spec = plugins().get("models", "hf_lm")
    made: Model = spec.load()(spec.config(preset="tiny-qwen2", dtype="bfloat16"))
    return made


@pytest.fixture(scope="module", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, model: Model, doubled: Callable[[str], Path]
) -> Iterator[IsolatedRollout]:
    spec = plugins().get("rollouts", "sglang")
    real = request.param == "sglang"
    with pytest.MonkeyPatch.context() as patch:
        if real:
            if not torch.cuda.is_available():
                pytest.skip("needs a CUDA device")
            build(spec)
        else:
            patch.syspath_prepend(doubled("0.5.23"))
        made = IsolatedRollout(
            SGLangConfig(max_running=8, memory_fraction=0.2 if real else 0.01),
            model,
            LoRAConfig(),
            "cuda:0" if real else "cpu",
            name="sglang",
            target=spec.target,
            program=Program.of(spec, "always" if real else "never"),
            timeout_s=300.0,
        )
    yield made
    made.close()


def bucket(model: Model, seed: int, version: int) -> WeightBucket:
    module = model.module(seed)
    return WeightBucket(version, {n: t.detach() for n, t in module.named_parameters()}, last=True)


def requests(count: int = 12) -> list[Request]:
    prompts = [Prompt(index=i, token_ids=np.array([1, 10 + i, 20]), text="") for i in range(count)]
    return [
        Request(prompt=prompt, group=prompt.index, replica=0, seed=7 + prompt.index) for prompt in prompts
    ]


def answers(engine: IsolatedRollout, asked: list[Request]) -> dict[int, Sample]:
    return {each.group: each for chunk in engine.generate(iter([asked]), SAMPLING) for each in chunk}


@torch.no_grad()
def expect_logprobs(model: Model, samples: list[Sample], seed: int) -> None:
    outputs = model.policy_outputs(
        model.module(seed),
        model.collate(samples),  # type: ignore[arg-type]
        frozenset({"logprobs"}),
        SAMPLING,
    )
    for i, sample in enumerate(samples):
        expected_T = outputs.logprobs_BT[i, : len(sample.response_ids)].float().numpy()
        assert np.abs(expected_T - sample.logprobs).mean() < GAP


def test_it_generates_updates_sleeps_and_goes_on(engine: IsolatedRollout, model: Model) -> None:
    engine.load_weights([bucket(model, seed=0, version=1)])
    assert engine.verified == len(list(model.module(0).named_parameters()))
    first = answers(engine, requests())
    expect_logprobs(model, list(first.values()), seed=0)
    alone = answers(engine, requests()[4:5])[4]
    assert alone.response_ids.tolist() == first[4].response_ids.tolist()
    engine.offload()
    engine.onload()
    again = answers(engine, requests())
    assert [again[key].response_ids.tolist() for key in first] == [
        each.response_ids.tolist() for each in first.values()
    ]
    engine.load_weights([bucket(model, seed=1, version=2)])
    second = answers(engine, requests())
    assert {each.weight_version for each in second.values()} == {2}
    expect_logprobs(model, list(second.values()), seed=1)
    made = engine.generate(iter([requests(48)]), SAMPLING)
    begun = [*next(made)]
    left = engine.abort()
    begun += [each for chunk in made for each in chunk]
    rest = answers(engine, left)
    assert len(begun) + len(rest) == 48
    expect_logprobs(model, [*begun, *rest.values()], seed=1)
    assert engine.memory_bytes() > 0
