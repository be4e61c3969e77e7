"""The `megatron` training backend: checks everything, then builds one rank of a trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rlinf_backend_megatron.ground import Ground
from rlinf_backend_megatron.release import check_release, preload
from rlinf_core.api import LoRAConfig, Model, OptimizerConfig, TrainBackend, TrainerContext
from rlinf_core.errors import ConfigError
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from rlinf_backend_megatron.config import MegatronConfig
    from rlinf_backend_megatron.resize import Rebuild
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
        ground = self._ground(model, lora, context, sampling, keep_reference=keep_reference)
        from rlinf_backend_megatron.trainer import MegatronTrainer

        return MegatronTrainer.build(ground, optimizer, context)

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
        """The model is read for its shapes; the others have its values."""
        ground = self._ground(model, lora, context, sampling, keep_reference=keep_reference)
        from rlinf_backend_megatron import trainer  # noqa: F401 - so that nobody waits for it later
        from rlinf_backend_megatron.resize import Facts, Rebuild

        return Rebuild(ground.hollow(), context, Facts(**facts), None)

    def _ground(
        self,
        model: Model,
        lora: LoRAConfig,
        context: TrainerContext,
        sampling: Sampling | None,
        *,
        keep_reference: bool,
    ) -> Ground:
        """All checks that come before Megatron is imported, and the one of it."""
        check_release()
        preload(self.config.preload)
        _check_device(context.device, self.config.preload)
        if lora.rank and self.config.sequence_parallel:
            raise ConfigError(
                "backend.sequence_parallel (megatron) does not go with adapters; leave it out, or set "
                "lora.rank=0"
            )
        ground = Ground.of(self.config, model, lora, context.seed, sampling, keep_reference=keep_reference)
        ground.layout(context.world_size)
        from rlinf_backend_megatron.network import check_experts  # imports Megatron, after the checks

        check_experts(ground.architecture)
        return ground


def _check_device(device: str, preloaded: str) -> None:
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"backend megatron: device {device!r} was asked for, but CUDA is not available")
    if kind != "cuda" and not preloaded:
        raise ConfigError(
            f"backend megatron: Megatron-Core trains on CUDA devices, and this is {device!r}; use --backend "
            "fsdp. To try it on the CPU, see 'On the CPU' in docs/backend-megatron.md"
        )
