"""vLLM's arguments from our settings, and what is refused before or after it was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rlinf_core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from rlinf_backend_vllm.config import VLLMConfig
    from rlinf_core.isolated_rollout.engine import Setup

GIB = 2**30
CPU_CACHE_GB = 1.0
LOAD_FORMAT = "rlinf"  # by which vLLM finds the loader of `worker.py`


def arguments(config: VLLMConfig, setup: Setup) -> dict[str, Any]:
    """Of `vllm.LLM`. Raises `ConfigError` for what cannot be. Any: values of settings."""
    model = json.loads((Path(setup.folder) / "config.json").read_text())
    check_parallel(config, model)
    length = config.max_length or setup.context_length
    if length > setup.context_length:
        raise ConfigError(
            f"rollout.max_length (vllm): {length} is beyond the model's context of {setup.context_length}"
        )
    chosen: dict[str, Any] = {
        "model": setup.folder,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # not the model's own defaults of sampling
        "load_format": LOAD_FORMAT,
        "worker_extension_cls": "rlinf_backend_vllm.worker.WeightReceiver",
        "logprobs_mode": "processed_logprobs",
        "dtype": model["dtype"] if config.dtype == "auto" else config.dtype,
        "max_model_len": length,
        "max_num_seqs": config.max_running,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "enable_prefix_caching": config.prefix_caching,
        "enforce_eager": config.eager,
        "seed": setup.seed,
        "disable_log_stats": True,
    }
    if setup.lora.rank:
        chosen |= {"enable_lora": True, "max_lora_rank": _lora_rank(setup.lora.rank), "max_loras": 1}
    return chosen | _memory(config, setup)


def check_parallel(config: VLLMConfig, model: dict[str, Any]) -> None:
    """Sizes have to divide what they share. Raises `ConfigError`."""
    heads, layers = model.get("num_attention_heads", 0), model.get("num_hidden_layers", 0)
    size, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    if heads % size:
        raise ConfigError(
            f"rollout.tensor_parallel_size (vllm): {size} does not divide the model's {heads} heads"
        )
    if stages > layers:
        raise ConfigError(
            f"rollout.pipeline_parallel_size (vllm): {stages} stages for a model of {layers} layers"
        )


def check_memory(wanted: float, free: float, total: float, key: str) -> None:
    """Raise `ConfigError` if what is wanted is not free. All in bytes."""
    if wanted > free:
        most = 0.9 * free / (total if "fraction" in key else GIB)
        raise ConfigError(
            f"{key}: the engine would take {wanted / GIB:.1f} GiB of {total / GIB:.1f}, but "
            f"{free / GIB:.1f} are free beside what the trainer and others hold; choose {most:.2f} or less, "
            "or give the engine devices of its own by mode=disaggregated"
        )


def refuse_unserved(err: Exception, setup: Setup) -> NoReturn:
    """Raise `ModelError` with what vLLM said."""
    model = json.loads((Path(setup.folder) / "config.json").read_text())
    name = ", ".join(model.get("architectures") or ["?"])
    heads = model.get("num_attention_heads") or 1
    width = model.get("head_dim") or model.get("hidden_size", 0) // heads
    lines = [line for line in str(err).strip().splitlines() if line.strip()] or [type(err).__name__]
    raise ModelError(
        f"rollout vllm: vLLM does not serve this model on device {setup.device} (architecture {name}, heads "
        f"of {width}): {lines[0].strip()}; choose another model, or a rollout engine that runs the model "
        "itself"
    ) from err


def _memory(config: VLLMConfig, setup: Setup) -> dict[str, Any]:
    if setup.device == "cpu":
        cache = (config.cache_gb or CPU_CACHE_GB) * GIB
        check_memory(cache, _host("MemAvailable"), _host("MemTotal"), "rollout.cache_gb (vllm)")
        return {"kv_cache_memory_bytes": int(cache)}
    import torch

    free, total = torch.cuda.mem_get_info(setup.device)
    check_memory(config.memory_fraction * total, free, total, "rollout.memory_fraction (vllm)")
    chosen: dict[str, Any] = {"gpu_memory_utilization": config.memory_fraction, "enable_sleep_mode": True}
    return chosen | ({"kv_cache_memory_bytes": int(config.cache_gb * GIB)} if config.cache_gb else {})


def _host(what: str) -> int:
    """Bytes of memory of this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def _lora_rank(rank: int) -> int:
    """The next that vLLM has."""
    return next((known for known in (8, 16, 32, 64, 128, 256, 320, 512) if known >= rank), rank)
