"""The `hf` engine with the tiny presets of the `hf_lm` model, found by name as a run finds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_backend_fsdp.config import HFRolloutConfig
from rlinf_backend_fsdp.rollout import HFRollout
from torch import nn

from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig, Model, WeightBucket
from rlinf_core.errors import ModelError
from rlinf_core.plugins import plugins
from rlinf_core.types import Begun, Prompt, Request, Sample, Sampling


def hf_lm(**settings: Any) -> Model:  # Any: settings of the plugin's config
    spec = plugins().get("models", "hf_lm")
    model: Model = spec.load()(spec.config(**settings))
    return model


def engine_for(model: Model, module: nn.Module, version: int = 1, **settings: int) -> HFRollout:
    engine = HFRollout(HFRolloutConfig(**settings), model, LoRAConfig())
    engine.load_weights([WeightBucket(version, dict(module.named_parameters()), last=True)])
    return engine


def requests(model: Model, groups: int = 6, replicas: int = 4) -> list[list[Request]]:
    texts = ["12=", "9>3=", "7=", "123456=", "0-1=", "55+5="]
    chunks = []
    for group in range(groups):
        text = texts[group % len(texts)]
        prompt = Prompt(group, np.array(model.processor().encode_prompt(text)), text)
        chunks.append([Request(prompt, group, r, 1000 * group + r) for r in range(replicas)])
    return chunks


def collect(stream: Iterator[list[Sample]]) -> dict[tuple[int, int], Sample]:
    found: dict[tuple[int, int], Sample] = {}
    for chunk in stream:
        for sample in chunk:
            assert (sample.group, sample.replica) not in found
            found[sample.group, sample.replica] = sample
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=24),
        Sampling(max_new_tokens=24, temperature=0.6, top_p=0.8, top_k=9),
        Sampling(max_new_tokens=24, min_new_tokens=6, temperature=1.3),
        Sampling(max_new_tokens=9, temperature=0.0),
    ],
    ids=["plain", "truncated", "min_new_tokens", "greedy"],
)
def test_logprobs_are_those_of_the_trainer(sampling: Sampling) -> None:
    model = hf_lm(preset="char-llama")
    module = model.module(2)
    samples = collect(engine_for(model, module).generate(requests(model), sampling))
    assert len(samples) == 24
    rows = list(samples.values())
    outputs = model.policy_outputs(module, model.collate(rows), frozenset({"logprobs"}), sampling)
    for row, logprobs_T in zip(rows, outputs.logprobs_BT.detach(), strict=True):
        ids = row.response_ids.tolist()
        np.testing.assert_allclose(logprobs_T[: len(ids)].numpy(), row.logprobs, atol=1e-4)
        assert row.mask.all()
        assert len(row.mask) == len(row.logprobs) == len(ids) <= sampling.max_new_tokens
        assert 2 not in ids[:-1]
        assert row.finish == ("stop" if ids[-1] == 2 else "length")
        assert row.finish == "stop" or len(ids) == sampling.max_new_tokens
        assert len(ids) >= min(sampling.min_new_tokens, sampling.max_new_tokens)
        assert row.text == model.processor().decode(ids)
        assert row.weight_version == 1


def test_what_a_request_yields_does_not_depend_on_the_rows_beside_it() -> None:
    model = hf_lm(preset="tiny-qwen2")
    module = model.module(0)
    sampling = Sampling(max_new_tokens=12)
    everything = requests(model)
    reference = collect(engine_for(model, module).generate(everything, sampling))
    flat = [request for chunk in everything for request in chunk]
    for settings, chunks in (
        ({"max_running": 1}, everything),
        ({"max_running": 5}, [flat[::-1]]),
        ({"max_cache_tokens": 40}, [[r] for r in flat[::2] + flat[1::2]]),
    ):
        again = collect(engine_for(model, module, **settings).generate(chunks, sampling))
        assert again.keys() == reference.keys()
        for key, sample in again.items():
            assert sample.response_ids.tolist() == reference[key].response_ids.tolist()
            np.testing.assert_allclose(sample.logprobs, reference[key].logprobs, atol=1e-5)


@pytest.mark.parametrize("cuts", [(2,), (1, 4, 7)])
def test_a_response_made_in_parts_is_the_one_made_at_once(cuts: tuple[int, ...]) -> None:
    model = hf_lm(preset="char-llama")
    engine = engine_for(model, model.module(0), max_running=5)
    sampling = Sampling(max_new_tokens=12, min_new_tokens=3)
    asked = [request for chunk in requests(model) for request in chunk]
    whole = collect(engine.generate(iter([asked]), sampling))
    found: dict[tuple[int, int], Sample] = {}
    for until in (*cuts, 0):
        some = [replace(request, until=until) for request in asked]
        found |= collect(engine.generate(iter([some[:3], some[3:]]), sampling))
        going = [each for each in asked if found[each.group, each.replica].finish == "length"]
        asked = [replace(each, begun=begun(found[each.group, each.replica])) for each in going]
    assert {len(sample.response_ids) for sample in whole.values()} > {12}
    for key, sample in whole.items():
        assert found[key].response_ids.tolist() == sample.response_ids.tolist()
        assert found[key].finish == sample.finish
        np.testing.assert_allclose(found[key].logprobs, sample.logprobs, atol=1e-5)


def begun(sample: Sample) -> Begun:
    return Begun(sample.response_ids, sample.logprobs, np.full(len(sample.response_ids), 1))


def test_seeds_decide_and_replicas_differ() -> None:
    model = hf_lm(preset="char-llama")
    engine = engine_for(model, model.module(0))
    first, again = (collect(engine.generate(requests(model, 1, 8), Sampling())) for _ in range(2))
    texts = [sample.text for sample in first.values()]
    assert texts == [again[key].text for key in first]
    assert len(set(texts)) == 8


def test_samples_come_before_the_last_request_is_known() -> None:
    model = hf_lm(preset="char-llama")
    asked: list[int] = []

    def source() -> Iterator[list[Request]]:
        for chunk in requests(model, 6, 4):
            asked.append(chunk[0].group)
            yield chunk

    stream = engine_for(model, model.module(0), max_running=4).generate(source(), Sampling(max_new_tokens=5))
    next(stream)
    assert len(asked) < 6
    stream.close()


def test_a_stopped_stream_leaves_the_engine_usable() -> None:
    model = hf_lm(preset="char-llama")
    engine = engine_for(model, model.module(0), max_running=4)
    expected = collect(engine.generate(requests(model), Sampling(max_new_tokens=6)))
    abandoned = engine.generate(requests(model), Sampling(max_new_tokens=6))
    next(abandoned)
    abandoned.close()
    again = collect(engine.generate(requests(model), Sampling(max_new_tokens=6)))
    assert {k: s.text for k, s in again.items()} == {k: s.text for k, s in expected.items()}


def test_a_stop_text_ends_the_response_and_stays_in_it() -> None:
    model = hf_lm(preset="char-llama")
    samples = collect(
        engine_for(model, model.module(0)).generate(
            requests(model, 6, 8), Sampling(max_new_tokens=40, stop=("7", "=1"))
        )
    )
    ended = [s for s in samples.values() if s.text.endswith(("7", "=1"))]
    assert len(ended) > 20
    for sample in samples.values():
        assert "7" not in sample.text[:-1]
        assert "=1" not in sample.text[:-1]
    assert all(sample.finish == "stop" for sample in ended)


def test_parameters_of_this_process_are_shared_and_other_tensors_copied() -> None:
    model = hf_lm(preset="tiny-llama")
    module = model.module(0)
    engine = engine_for(model, module)
    own = dict(engine._own_module().named_parameters())
    assert all(own[name].data_ptr() == tensor.data_ptr() for name, tensor in module.named_parameters())
    engine = HFRollout(HFRolloutConfig(), model, LoRAConfig())
    engine.load_weights([WeightBucket(0, {n: t.detach().clone() for n, t in module.named_parameters()})])
    own = dict(engine._own_module().named_parameters())
    assert all(torch.equal(own[name], tensor) for name, tensor in module.named_parameters())
    assert not any(own[name].data_ptr() == tensor.data_ptr() for name, tensor in module.named_parameters())


def test_new_weights_are_used_from_the_next_token_on() -> None:
    model = hf_lm(preset="char-llama")
    module = model.module(0)
    engine = engine_for(model, module, version=1)
    before = collect(engine.generate(requests(model), Sampling()))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert engine.load_weights([WeightBucket(2, dict(module.named_parameters()))]) == 2
    after = collect(engine.generate(requests(model), Sampling()))
    assert {s.weight_version for s in before.values()} == {1}
    assert {s.weight_version for s in after.values()} == {2}
    rows = list(after.values())
    outputs = model.policy_outputs(module, model.collate(rows), frozenset({"logprobs"}))
    for row, logprobs_T in zip(rows, outputs.logprobs_BT.detach(), strict=True):
        np.testing.assert_allclose(logprobs_T[: len(row.logprobs)].numpy(), row.logprobs, atol=1e-4)


def test_misuse_is_explained() -> None:
    model = hf_lm(preset="char-llama")
    engine = HFRollout(HFRolloutConfig(), model, LoRAConfig())
    with pytest.raises(ModelError, match="generate before load_weights"):
        next(engine.generate(requests(model), Sampling()))
    weights = dict(model.module(0).named_parameters())
    with pytest.raises(ModelError, match=r"first weights lack .*'lm_head.weight'"):
        engine.load_weights([WeightBucket(1, {n: t for n, t in weights.items() if n != "lm_head.weight"})])
    with pytest.raises(ModelError, match="received weight 'nonsense'"):
        engine.load_weights([WeightBucket(1, {"nonsense": torch.zeros(1)})])
    with pytest.raises(ModelError, match=r"'lm_head.weight' has shape \(1,\), expected \(22, 64\)"):
        engine.load_weights([WeightBucket(1, {"lm_head.weight": torch.zeros(1)})])
    with pytest.raises(ModelError, match="generate before load_weights"):
        next(engine.generate(requests(model), Sampling()))
    engine.load_weights([WeightBucket(1, weights)])
    with pytest.raises(
        ModelError, match=r"has 4 tokens and .*max_new_tokens is 253; together 257, .* is 256"
    ):
        next(engine.generate(requests(model), Sampling(max_new_tokens=253)))


@pytest.mark.parametrize("valued", [False, True])
def test_adapters_reach_the_rollout_and_never_the_base_weights(valued: bool) -> None:
    model, lora = hf_lm(preset="tiny-qwen2"), LoRAConfig(rank=4)
    if valued:
        model.add_value_head()
    trained = adapted_module(model, lora, 0)
    engine = HFRollout(HFRolloutConfig(), model, lora)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items() if not _trains(name)}
    sampling, texts = Sampling(max_new_tokens=10, temperature=0.7), set()
    engine.load_weights([WeightBucket(0, dict(trained.named_parameters()))])
    torch.manual_seed(0)
    for version in range(1, 6):
        adapters = {n: p for n, p in trained.named_parameters() if p.requires_grad}
        assert any("value_head" in name for name in adapters) == valued
        with torch.no_grad():
            for parameter in adapters.values():
                parameter.add_(0.03 * torch.randn_like(parameter))
        engine.load_weights([WeightBucket(version, adapters)])
        rows = list(collect(engine.generate(requests(model), sampling)).values())
        outputs = model.policy_outputs(trained, model.collate(rows), frozenset({"logprobs"}), sampling)
        for row, logprobs_T in zip(rows, outputs.logprobs_BT.detach(), strict=True):
            np.testing.assert_allclose(logprobs_T[: len(row.logprobs)].numpy(), row.logprobs, atol=1e-4)
        assert {row.weight_version for row in rows} == {version}
        texts.add(tuple(row.text for row in rows))
    assert len(texts) == 5
    for state in (trained.state_dict(), engine._own_module().state_dict()):
        assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def _trains(name: str) -> bool:
    return "lora_" in name or "value_head" in name
