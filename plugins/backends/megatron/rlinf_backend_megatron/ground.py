"""What a trainer is built from, whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rlinf_backend_megatron.architecture import Architecture, read
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.layout import Layout, checked_layout
from rlinf_backend_megatron.mapping import Form, check_names
from rlinf_backend_megatron.release import has_transformer_engine
from rlinf_backend_megatron.source import Source, read_source
from rlinf_backend_megatron.spread import Spread
from rlinf_core.api import LoRAConfig, Model
from rlinf_core.types import Sampling


@dataclass(frozen=True)
class Ground:
    """What stays when the number of ranks changes."""

    config: MegatronConfig
    model: Model
    architecture: Architecture
    source: Source
    seed: int
    sampling: Sampling
    keep_reference: bool

    @classmethod
    def of(
        cls,
        config: MegatronConfig,
        model: Model,
        lora: LoRAConfig,
        seed: int,
        sampling: Sampling | None,
        *,
        keep_reference: bool,
    ) -> Ground:
        """With the weights of a new module. Raises `ConfigError` and `ModelError`."""
        source = read_source(model, lora, seed)
        architecture = read(source.config)
        check_names(architecture, source.own_names())
        return cls(config, model, architecture, source, seed, sampling or Sampling(), keep_reference)

    def hollow(self) -> Ground:
        """Without the weights."""
        return replace(self, source=self.source.hollow())

    def layout(self, ranks: int) -> Layout:
        """On so many ranks. Raises `ConfigError` where the model does not fit on them."""
        engine = has_transformer_engine()
        return checked_layout(self.config.on(ranks), self.architecture, ranks, transformer_engine=engine)

    def forms(self) -> dict[str, Form]:
        """Of all tensors, by the names of the module."""
        return self.source.forms(torch.bfloat16 if self.config.precision == "bf16" else torch.float32)

    def spread(self, order: tuple[str, ...]) -> Spread:
        """How the model lies on ranks, where the parameters of a layer have this order."""
        return Spread(
            self.architecture,
            self.forms(),
            tuple(self.source.extra_pieces(self.architecture.layers)),
            order,
            adapted=self.source.lora.rank > 0,
            distributed=self.config.distributed_optimizer,
        )
