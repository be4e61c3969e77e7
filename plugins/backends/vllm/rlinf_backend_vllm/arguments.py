"""vLLM's arguments from our settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ConfigError
from rlinf_core.isolated_rollout.fitting import (
    GIB,
    check_length,
    check_memory,
    check_parallel,
    device_memory,
    model_settings,
)

if TYPE_CHECKING:
    from rlinf_backend_vllm.config import VLLMConfig
    from rlinf_core.isolated_rollout.engine import Setup

CPU_CACHE_GB = 1.0
LOAD_FORMAT = "rlinf"  # by which vLLM finds the loader of `worker.py`
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


def arguments(config: VLLMConfig, setup: Setup) -> dict[str, Any]:
    """Of `vllm.LLM`. Raises `ConfigError` for what cannot be. Any: values of settings."""
    model = model_settings(setup)
    check_parallel(config.tensor_parallel_size, config.pipeline_parallel_size, model, "vllm")
    chosen: dict[str, Any] = {
        "model": setup.folder,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # not the model's own defaults of sampling
        "load_format": LOAD_FORMAT,
        "worker_extension_cls": "rlinf_backend_vllm.worker.WeightReceiver",
        "logprobs_mode": "processed_logprobs",
        "dtype": model["dtype"] if config.dtype == "auto" else config.dtype,
        "max_model_len": check_length(config.max_length, setup, "vllm"),
        "max_num_seqs": config.max_running,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "enable_prefix_caching": config.prefix_caching,
        "enforce_eager": config.eager,
        "seed": setup.seed,
        "disable_log_stats": True,
    }
    if setup.lora.rank:
        rank = next((known for known in LORA_RANKS if known >= setup.lora.rank), setup.lora.rank)
        chosen |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    return chosen | _memory(config, setup)


def visible_devices(config: VLLMConfig, setup: Setup, visible: str | None) -> str:
    """What `CUDA_VISIBLE_DEVICES` has to be: vLLM takes the first that it sees. Raises `ConfigError`."""
    first = int(setup.device.partition(":")[2] or 0)
    count = config.tensor_parallel_size * config.pipeline_parallel_size
    known = visible.split(",") if visible else [str(i) for i in range(first + count)]
    if first + count > len(known):
        raise ConfigError(
            f"rollout.tensor_parallel_size x rollout.pipeline_parallel_size (vllm): {count} devices from "
            f"{setup.device} on, but there are {len(known)}; choose fewer"
        )
    return ",".join(known[first : first + count])


def _memory(config: VLLMConfig, setup: Setup) -> dict[str, Any]:
    free, total = device_memory("cpu" if setup.device == "cpu" else "cuda:0")
    if setup.device == "cpu":
        cache = (config.cache_gb or CPU_CACHE_GB) * GIB
        check_memory(cache, free, total, "rollout.cache_gb (vllm)")
        return {"kv_cache_memory_bytes": int(cache)}
    check_memory(config.memory_fraction * total, free, total, "rollout.memory_fraction (vllm)")
    chosen: dict[str, Any] = {"gpu_memory_utilization": config.memory_fraction, "enable_sleep_mode": True}
    return chosen | ({"kv_cache_memory_bytes": int(config.cache_gb * GIB)} if config.cache_gb else {})
