"""The engine in this process, over the double: what the contract does not ask for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from rlinf_backend_sglang import arguments, updates
from rlinf_backend_sglang.config import SGLangConfig
from rlinf_backend_sglang.engine import SGLangEngine, _drawn

from rlinf_core.api import LoRAConfig
from rlinf_core.errors import ConfigError, ModelError, PluginError
from rlinf_core.isolated_rollout.buckets import Bucket
from rlinf_core.isolated_rollout.engine import Job, Progress, Setup
from rlinf_core.plugins import plugins
from rlinf_core.types import Sampling

GIB = 2**30
Make = Callable[..., SGLangEngine]
Shared = Callable[[dict[str, torch.Tensor]], Bucket]


@pytest.fixture
def make(doubled: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(arguments, "device_memory", lambda device: (40 * GIB, 80 * GIB))
    spec = plugins().get("models", "hf_lm")
    model = spec.load()(spec.config(preset="tiny-qwen2"))
    model.export_architecture(tmp_path)

    def build(
        device: str = "cpu",
        rank: int = 0,
        release: str = "0.5.23",
        eos_ids: tuple[int, ...] = (2,),
        **settings: Any,
    ) -> SGLangEngine:
        monkeypatch.syspath_prepend(doubled(release))
        setup = Setup(str(tmp_path), eos_ids, 0, 512, device, lora=LoRAConfig(rank=rank, alpha=8.0))
        return SGLangEngine(SGLangConfig(**settings), setup)

    yield build
    sys.modules.pop("sglang", None)


def all_of(engine: SGLangEngine) -> list[Progress]:
    made: list[Progress] = []
    while engine._tasks or engine._made:
        made += engine.step()
    return made


def test_sleep_frees_the_device_once_sglang_is_idle(make: Make) -> None:
    engine = make("cuda:1")
    assert engine.engine.arguments["base_gpu_id"] == 1
    engine.add([Job(1, [5, 6], 3, most=4)], Sampling(), stream=False)
    all_of(engine)
    engine.sleep()
    engine.wake()
    engine.close()
    assert engine.engine.calls == ["release", "resume", "shutdown"]


def test_memory_is_that_of_all_processes(make: Make) -> None:
    assert make(tensor_parallel_size=2).memory_bytes() == 2 * 3.75 * GIB


def test_a_request_that_sglang_ends_by_itself_is_an_error_with_what_it_says(make: Make) -> None:
    engine = make()
    engine.add([Job(1, [5, 6], 3, most=400)], Sampling(), stream=True)
    engine.step()
    engine.engine.scheduler.abort("")
    with pytest.raises(ModelError, match="SGLang ended a request: Aborted"):
        all_of(engine)


def test_a_request_that_sglang_refuses_is_an_error_with_what_it_says(make: Make) -> None:
    engine = make()
    engine.add([Job(1, [5, 6], 3, most=600)], Sampling(), stream=True)
    with pytest.raises(ValueError, match="exceeds the model's maximum context length"):
        all_of(engine)


def test_a_response_may_fill_the_context_to_the_last_token(make: Make) -> None:
    engine = make(max_length=32)
    engine.add([Job(1, [5, 6], 3, most=30, least=30)], Sampling(), stream=False)
    made = all_of(engine)
    assert sum(len(each.token_ids) for each in made) == 30
    assert made[-1].finish == "length"


def test_a_job_is_ended_before_sglang_has_heard_of_it(make: Make) -> None:
    engine = make()
    engine.add([Job(1, [5], 3, most=9)], Sampling(), stream=True)
    assert engine.abort([1]) == [Progress(1, [], [], "abort")]
    assert not engine.engine.tokenizer_manager.rid_to_state


def test_a_job_is_ended_while_sglang_hears_of_it(make: Make) -> None:
    engine = make()
    engine.add([Job(1, [5], 3, most=400, least=400)], Sampling(), stream=True)
    engine.loop.run_until_complete(asyncio.sleep(0))
    made = engine.abort([1])
    assert made[-1].finish == "abort"
    assert sum(len(each.token_ids) for each in made) < 400


@pytest.mark.parametrize("release", ["0.5.10", "0.5.23"])
def test_a_response_whose_last_token_may_end_it_has_stopped(release: str, make: Make) -> None:
    """SGLang 0.5.10 says that it has reached its length."""
    engine = make(release=release, eos_ids=tuple(range(128)))
    engine.add([Job(1, [5], 3, most=1)], Sampling(), stream=False)
    assert all_of(engine)[-1].finish == "stop"


def test_ending_a_job_leaves_those_whose_numbers_begin_like_its_own(make: Make) -> None:
    engine = make()
    jobs = [Job(number, [5], 3, most=300, least=300) for number in (1, 12)]
    engine.add(jobs, Sampling(), stream=True)
    begun: set[int] = set()
    while begun != {1, 12}:
        begun |= {each.number for each in engine.step()}
    assert engine.abort([1])[-1].finish == "abort"
    made = [each for _ in range(20) for each in engine.step()]
    assert {each.number for each in made} == {12}
    assert {each.finish for each in made} == {None}
    engine.abort([12])


def test_what_is_ended_keeps_the_tokens_that_nobody_has_seen(make: Make) -> None:
    engine = make()
    engine.add([Job(1, [5, 6], 3, most=400, least=400)], Sampling(), stream=True)
    seen = sum(len(each.token_ids) for each in engine.step())
    made = engine.abort([1])
    assert made[-1].finish == "abort"
    assert sum(len(each.token_ids) for each in made) > 0
    assert all(len(each.token_ids) == len(each.logprobs) for each in made)
    assert seen + sum(len(each.token_ids) for each in made) < 400


def test_adapters_replace_each_other_and_requests_name_the_last(make: Make, shared: Shared) -> None:
    engine = make(rank=2)
    names = [f"model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB"]
    for number in (1, 2):
        engine.load(shared({names[0]: torch.ones(2, 128), names[1]: torch.ones(128, 2) * number}))
        engine.finish_update()
        assert list(engine.engine.adapters) == [f"policy-{number}"]
        ((settings, keys),) = engine.engine.adapters.values()
        assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (2, 8.0, ["q_proj"])
        assert keys == [f"base_model.model.{name}" for name in names]
    engine.add([Job(1, [5, 6], 3, most=2)], Sampling(), stream=True)  # the double has no other adapter
    all_of(engine)
    assert not list(Path(engine.setup.folder).glob("adapter-*"))


def test_weights_that_sglang_does_not_take_are_an_error_with_what_it_says(
    make: Make, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    monkeypatch.setattr(engine.engine, "update_weights_from_tensor", lambda **_: (False, "out of memory"))
    with pytest.raises(ModelError, match="SGLang does not take new weights: out of memory"):
        engine.load(shared({}))


def test_an_sglang_that_does_not_become_idle_is_named(
    make: Make, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    monkeypatch.setattr(updates, "IDLE_S", 0.1)
    engine.add([Job(1, [5, 6], 3, most=400, least=400)], Sampling(), stream=True)
    engine.step()
    with pytest.raises(ModelError, match=r"requests still run 0.1 s after all were ended"):
        engine.load(shared({}))
    engine.abort([1])


def test_an_sglang_that_does_not_import_is_named_with_what_it_lacks(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(PluginError, match=r"SGLang 0.5.23 does not import in this environment: .* CUDA"):
        make()


def test_seeds_that_sglang_has_not_on_processors_are_refused_with_what_to_set(
    make: Make, doubled: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**settings: Any) -> None:
        raise ValueError(
            "Currently only ['fa3'] attention backends are supported for deterministic inference"
        )

    monkeypatch.syspath_prepend(doubled("0.5.23"))
    monkeypatch.setattr(import_module("sglang"), "Engine", refuse)
    with pytest.raises(ConfigError, match=r"rollout.deterministic \(sglang\): .*deterministic=false"):
        make()
    with pytest.raises(ModelError, match=r"SGLang does not serve this model on device cuda:0"):
        make("cuda:0")


def test_without_seeds_sglang_is_given_none(make: Make) -> None:
    engine = make(deterministic=False)
    engine.add([Job(1, [5, 6], 3, most=2)], Sampling(), stream=True)
    all_of(engine)
    assert engine.engine.arguments["enable_deterministic_inference"] is False


def test_of_a_request_that_ends_while_it_waits_the_last_token_alone_is_told_and_not_taken() -> None:
    logprobs = [(-0.5, 4, None), (-0.25, 5, None), (-0.125, 6, None)]
    whole = {"output_ids": [4, 5, 6], "meta_info": {"output_token_logprobs": logprobs}}
    assert _drawn(whole, "abort") == ([4, 5, 6], [-0.5, -0.25, -0.125])
    assert _drawn({**whole, "output_ids": [6]}, "abort") == ([], [])
    assert _drawn({**whole, "output_ids": [4, 5]}, "") == ([4, 5], [-0.5, -0.25])  # the list grows meanwhile
