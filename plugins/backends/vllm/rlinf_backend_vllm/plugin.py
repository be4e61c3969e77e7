"""Registers the rollout engine `vllm`."""

from __future__ import annotations

from rlinf_backend_vllm.config import VLLMConfig
from rlinf_core.api import RolloutCapabilities
from rlinf_core.plugins import Isolation, RolloutSpec, hookimpl

VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # users share machines: the system places threads
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's process is one of its own already
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # the model comes from the trainer
    "PYTHONWARNINGS": "ignore::FutureWarning",  # of vLLM's own imports
}


@hookimpl
def rlinf_register_rollouts() -> list[RolloutSpec]:
    """The one rollout engine of this distribution."""
    return [
        RolloutSpec(
            name="vllm",
            summary="Generation by vLLM, in a process of an environment of its own",
            config=VLLMConfig,
            target="rlinf_backend_vllm.engine:VLLMEngine",
            provides=RolloutCapabilities(
                lora=True, lora_variants=frozenset({"lora", "rslora"}), abort=True, continues=True
            ),
            isolation=Isolation(
                lock="rlinf_backend_vllm/lock.txt",
                imports=("vllm",),
                variables=VARIABLES,
                python=">=3.11,<3.13",
            ),
            example={"max_running": 16, "cache_gb": 0.25},
            checked_with={"name": "hf_lm", "preset": "tiny-qwen2"},
        )
    ]
