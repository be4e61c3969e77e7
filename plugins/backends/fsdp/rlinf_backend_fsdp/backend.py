"""The `fsdp` training backend: builds one rank of a trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlinf_backend_fsdp.ground import build_ground
from rlinf_backend_fsdp.resize import Facts, Rebuild
from rlinf_backend_fsdp.trainer import FSDPTrainer
from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig, Model, OptimizerConfig, TrainBackend, TrainerContext
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from torch import nn

    from rlinf_backend_fsdp.config import FSDPConfig


class FSDPBackend(TrainBackend):
    """PyTorch training on any number of ranks, sharded or replicated."""

    config: FSDPConfig

    def build(
        self,
        model: Model,
        optimizer: OptimizerConfig,
        lora: LoRAConfig,
        context: TrainerContext,
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> FSDPTrainer:
        """Join the other ranks and build. Raises `ConfigError`."""
        return FSDPTrainer.build(
            self.config, model, optimizer, lora, context, sampling=sampling, keep_reference=keep_reference
        )

    def join(
        self,
        model: Model,
        lora: LoRAConfig,
        context: TrainerContext,
        facts: Mapping[str, Any],
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> Rebuild:
        """The model is built, and its values are forgotten: the others have better ones."""
        ground, *_ = build_ground(
            self.config, model, lora, context.seed, sampling, keep_reference=keep_reference
        )
        return Rebuild(ground, context, Facts(**facts), None)

    def acting_module(self, model: Model, lora: LoRAConfig, seed: int) -> nn.Module:
        """With the adapters that the trainer has."""
        return adapted_module(model, lora, seed)
