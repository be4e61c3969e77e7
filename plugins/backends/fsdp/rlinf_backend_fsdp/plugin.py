"""Registers the training backend `fsdp` and the rollout engine `hf`."""

from __future__ import annotations

from rlinf_backend_fsdp.config import FSDPConfig, HFRolloutConfig
from rlinf_core.api import BackendCapabilities, RolloutCapabilities
from rlinf_core.plugins import BackendSpec, RolloutSpec, hookimpl

VARIANTS = frozenset({"lora", "rslora", "dora"})


@hookimpl
def rlinf_register_backends() -> list[BackendSpec]:
    """The one backend of this distribution."""
    return [
        BackendSpec(
            name="fsdp",
            summary="PyTorch training on any number of ranks, sharded (FSDP2) or replicated",
            config=FSDPConfig,
            target="rlinf_backend_fsdp.backend:FSDPBackend",
            rollout="hf",
            provides=BackendCapabilities(
                lora=True,
                lora_variants=VARIANTS,
                offload=True,
                precisions=frozenset({"fp32", "bf16"}),
                reference=True,
                resize=True,
                any_order=True,
            ),
        )
    ]


@hookimpl
def rlinf_register_rollouts() -> list[RolloutSpec]:
    """The one rollout engine of this distribution."""
    return [
        RolloutSpec(
            name="hf",
            summary="Generation in the trainer's process, sharing its weights",
            config=HFRolloutConfig,
            target="rlinf_backend_fsdp.rollout:HFRollout",
            provides=RolloutCapabilities(lora=True, lora_variants=VARIANTS, continues=True),
        )
    ]
