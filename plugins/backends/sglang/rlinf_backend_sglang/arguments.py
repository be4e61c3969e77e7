"""SGLang's arguments from our settings, and what is refused before it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_core.isolated_rollout.fitting import (
    check_length,
    check_memory,
    check_parallel,
    device_memory,
    model_settings,
)

if TYPE_CHECKING:
    from rlinf_backend_sglang.config import SGLangConfig
    from rlinf_core.api import LoRAConfig
    from rlinf_core.isolated_rollout.engine import Setup

LOADER = "rlinf_backend_sglang.loader.receive"  # how SGLang's own processes find it
SPARE = 8  # tokens that SGLang keeps free at the end of its context
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

WITHOUT_KERNELS = {"attention_backend": "torch_native", "sampling_backend": "pytorch"}  # torch alone


def arguments(config: SGLangConfig, setup: Setup) -> dict[str, Any]:
    """Of `sglang.Engine`. Raises `ConfigError` for what cannot be. Any: values of settings."""
    model = model_settings(setup)
    check_parallel(config.tensor_parallel_size, config.pipeline_parallel_size, model, "sglang")
    chosen: dict[str, Any] = {
        "model_path": setup.folder,
        "skip_tokenizer_init": True,
        "load_format": "dummy",  # the trainer sends weights before the first request
        "custom_weight_loader": [LOADER],
        "dtype": _dtype(config, setup, model["dtype"]),
        "context_length": check_length(config.max_length, setup, "sglang") + SPARE,
        "max_running_requests": config.max_running,
        "tp_size": config.tensor_parallel_size,
        "pp_size": config.pipeline_parallel_size,
        "disable_radix_cache": not config.prefix_caching,
        "disable_cuda_graph": config.eager,
        "enable_deterministic_inference": config.deterministic,
        "random_seed": setup.seed % 2**31,
        "log_level": "error",
    }
    return chosen | _adapters(setup.lora) | _device(config, setup)


def _dtype(config: SGLangConfig, setup: Setup, of_model: str) -> str:
    """Attention in float32 is not in SGLang's kernels for GPUs."""
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if of_model == "float32" and setup.device != "cpu" else of_model


def _adapters(lora: LoRAConfig) -> dict[str, Any]:  # Any: as in `arguments`
    if not lora.rank:
        return {}
    modules = LINEAR if lora.target_modules == ("all-linear",) else lora.target_modules
    return {
        "enable_lora": True,
        "max_lora_rank": lora.rank,
        "lora_target_modules": list(modules),
        "max_loras_per_batch": 2,  # one beside none at all, which counts
    }


def _device(config: SGLangConfig, setup: Setup) -> dict[str, Any]:  # Any: as in `arguments`
    """SGLang's fraction is of what is free when it starts, ours of the whole device."""
    free, total = device_memory(setup.device)
    wanted = config.memory_fraction * total
    check_memory(wanted, free, total, "rollout.memory_fraction (sglang)")
    chosen: dict[str, Any] = {"mem_fraction_static": round(wanted / free, 3)}
    if setup.device == "cpu":
        return chosen | {"device": "cpu"} | WITHOUT_KERNELS
    index = setup.device.partition(":")[2] or "0"
    return chosen | {
        "device": "cuda",
        "base_gpu_id": int(index),
        "enable_memory_saver": True,
        "enable_weights_cpu_backup": True,
    }
