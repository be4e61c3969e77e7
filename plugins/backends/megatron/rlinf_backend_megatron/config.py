"""Settings of the `megatron` backend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rlinf_core.errors import ConfigError

OFFLOADED = ("weights", "optimizer", "gradients")
SIZES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


@dataclass(frozen=True)
class MegatronConfig:
    """How one model lies on the ranks. Ranks beyond tensor x pipeline x context are data parallel."""

    tensor_parallel: int = 1  # ranks that share every layer's matrices; 0 = all that the others leave
    pipeline_parallel: int = 1  # ranks that have some of the layers each
    context_parallel: int = 1  # ranks that share the positions of a row
    expert_parallel: int = 1  # data-parallel ranks that share the experts of a layer
    sequence_parallel: bool = False  # split norms over the tensor-parallel ranks; needs TransformerEngine
    distributed_optimizer: bool = True  # shard the optimizer's state over data-parallel ranks
    precision: Literal["fp32", "bf16"] = field(  # of parameters; gradients and the optimizer's are float32
        default="fp32", metadata={"less_memory": "bf16"}
    )
    recompute: Literal["none", "selective", "full"] = field(  # in backward: attention, or whole layers
        default="none", metadata={"less_memory": "full"}
    )
    offload: tuple[str, ...] = OFFLOADED  # what leaves the device for others
    preload: str = ""  # a Python file that is run before Megatron is imported; to try things on the CPU

    def __post_init__(self) -> None:
        for name in SIZES:
            least = 0 if name == "tensor_parallel" else 1
            if getattr(self, name) < least:
                raise ConfigError(f"backend.{name} (megatron): {getattr(self, name)} is less than {least}")
        for name, value, allowed in (
            ("precision", self.precision, ("fp32", "bf16")),
            ("recompute", self.recompute, ("none", "selective", "full")),
        ):
            if value not in allowed:
                raise ConfigError(f"backend.{name} (megatron): {value!r} is not one of {', '.join(allowed)}")
        unknown = [name for name in self.offload if name not in OFFLOADED]
        if unknown:
            raise ConfigError(
                f"backend.offload (megatron): {unknown[0]!r} cannot be offloaded; there are "
                f"{', '.join(OFFLOADED)}"
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "backend.sequence_parallel (megatron) splits over the tensor-parallel ranks, of which there "
                "is one; raise backend.tensor_parallel or leave it out"
            )

    @property
    def model_ranks(self) -> int:
        """That hold one model together, or a divisor of their number where ranks decide it."""
        return max(1, self.tensor_parallel) * self.pipeline_parallel * self.context_parallel

    def on(self, ranks: int) -> MegatronConfig:
        """The same with the tensor-parallel size that so many ranks have."""
        if self.tensor_parallel:
            return self
        size = max(1, ranks // self.model_ranks)
        return replace(self, tensor_parallel=size, sequence_parallel=self.sequence_parallel and size > 1)
