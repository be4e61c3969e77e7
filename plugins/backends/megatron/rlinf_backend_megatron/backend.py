"""The `megatron` training backend: checks everything, then builds one rank of a trained policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlinf_backend_megatron.architecture import read
from rlinf_backend_megatron.layout import checked_layout
from rlinf_backend_megatron.mapping import check_names
from rlinf_backend_megatron.release import check_release, has_transformer_engine, preload
from rlinf_backend_megatron.source import read_source
from rlinf_core.api import LoRAConfig, Model, OptimizerConfig, TrainBackend, TrainerContext
from rlinf_core.errors import ConfigError
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from rlinf_backend_megatron.config import MegatronConfig
    from rlinf_backend_megatron.trainer import MegatronTrainer


class MegatronBackend(TrainBackend):
    """Megatron-Core training of the language models that are mapped to it."""

    config: MegatronConfig

    def build(
        self,
        model: Model,
        optimizer: OptimizerConfig,
        lora: LoRAConfig,
        context: TrainerContext,
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> MegatronTrainer:
        """Check, join the other ranks and build. Raises `ConfigError` and `PluginError`."""
        check_release()
        preload(self.config.preload)
        _check_device(context.device, self.config.preload)
        if lora.rank and self.config.sequence_parallel:
            raise ConfigError(
                "backend.sequence_parallel (megatron) does not go with adapters; leave it out, or set "
                "lora.rank=0"
            )
        source = read_source(model, lora, context.seed)
        architecture = read(source.config)
        check_names(architecture, source.own_names())
        layout = checked_layout(
            self.config, architecture, context.world_size, transformer_engine=has_transformer_engine()
        )
        from rlinf_backend_megatron.network import check_experts  # imports Megatron, after the checks
        from rlinf_backend_megatron.trainer import MegatronTrainer
        from rlinf_backend_megatron.world import join_world

        check_experts(architecture)
        return MegatronTrainer(
            self.config,
            model,
            architecture,
            source,
            optimizer,
            context,
            join_world(context, layout),
            sampling=sampling,
            keep_reference=keep_reference,
        )


def _check_device(device: str, preloaded: str) -> None:
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"backend megatron: device {device!r} was asked for, but CUDA is not available")
    if kind != "cuda" and not preloaded:
        raise ConfigError(
            f"backend megatron: Megatron-Core trains on CUDA devices, and this is {device!r}; use --backend "
            "fsdp. To try it on the CPU, see 'On the CPU' in docs/backend-megatron.md"
        )
