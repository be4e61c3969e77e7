"""Registers the model `openvla`."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_openvla.config import OpenVLAConfig


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """The one model of this distribution."""
    return [
        ModelSpec(
            name="openvla",
            summary="OpenVLA: DINOv2 and SigLIP pictures, an instruction, Llama 2; actions as tokens",
            config=OpenVLAConfig,
            target="rlinf_model_openvla.model:OpenVLA",
            provides=ModelCapabilities(
                modality="embodied",
                observations=frozenset({"images", "instruction"}),
                value_head=True,
                lora=True,
                logprob_levels=frozenset({"chunk", "action", "token"}),
                continuous_actions=True,
            ),
            suggests={"optimizer": {"lr": 1e-5}, "train": {"micro_batch_tokens": 64}},  # decisions
            example={"preset": "tiny"},
        )
    ]
