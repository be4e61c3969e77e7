"""Registers the training backend `megatron`."""

from __future__ import annotations

from rlinf_backend_megatron.config import MegatronConfig
from rlinf_core.api import BackendCapabilities
from rlinf_core.plugins import BackendSpec, hookimpl


@hookimpl
def rlinf_register_backends() -> list[BackendSpec]:
    """The one backend of this distribution."""
    return [
        BackendSpec(
            name="megatron",
            summary="Megatron-Core training of language models, parallel in five ways",
            config=MegatronConfig,
            target="rlinf_backend_megatron.backend:MegatronBackend",
            rollout="hf",
            model_ranks=lambda config: config.model_ranks,
            check_model="rlinf_backend_megatron.check_model:CheckModel",
            provides=BackendCapabilities(
                modalities=frozenset({"text"}),
                lora=True,
                offload=True,
                precisions=frozenset({"fp32", "bf16"}),
                reference=True,
                resize=True,
            ),
        )
    ]
