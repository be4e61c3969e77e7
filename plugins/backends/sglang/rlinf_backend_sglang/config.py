"""Settings of the `sglang` rollout engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf_core.errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class SGLangConfig:
    """How SGLang runs the model."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = (
        "auto"  # auto = the model's; no float32 on GPUs
    )
    max_running: int = field(  # responses generated at once on one rank
        default=256, metadata={"less_memory": "half"}
    )
    max_length: int = 0  # longest prompt and response together; 0 = the model's context
    memory_fraction: float = 0.4  # of a GPU's memory that weights and cache may take together
    tensor_parallel_size: int = 1  # devices that share each layer
    pipeline_parallel_size: int = 1  # devices that share the layers among them
    prefix_caching: bool = True  # keep keys and values of prompts, until the next update
    eager: bool = False  # no captured graphs: a faster start, slower steps
    deterministic: bool = True  # responses follow from their seeds; without it seeds are not used

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"rollout.dtype (sglang): {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for name in ("max_running", "tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name} (sglang): {getattr(self, name)} is less than 1")
        if self.max_length < 0:
            raise ConfigError(f"rollout.max_length (sglang): {self.max_length} is less than 0")
        if not 0 < self.memory_fraction <= 1:
            raise ConfigError(
                f"rollout.memory_fraction (sglang): {self.memory_fraction} is not above 0 and at most 1"
            )
