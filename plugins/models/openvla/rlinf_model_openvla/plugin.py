"""Registers the models `openvla` and `openvla_oft`."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_openvla.config import OpenVLAConfig
from rlinf_model_openvla.oft.config import OpenVLAOFTConfig

_PROVIDES = ModelCapabilities(
    modality="embodied",
    observations=frozenset({"images", "instruction"}),
    value_head=True,
    lora=True,
    logprob_levels=frozenset({"chunk", "action", "token"}),
    continuous_actions=True,
    demonstrations=True,
)
_SUGGESTS = {"optimizer": {"lr": 1e-5}, "train": {"micro_batch_tokens": 64}}  # decisions


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """Both models of this distribution."""
    return [
        ModelSpec(
            name="openvla",
            summary="OpenVLA: DINOv2 and SigLIP pictures, an instruction, Llama 2; actions as tokens",
            config=OpenVLAConfig,
            target="rlinf_model_openvla.model:OpenVLA",
            provides=_PROVIDES,
            suggests=_SUGGESTS,
            example={"preset": "tiny"},
        ),
        ModelSpec(
            name="openvla_oft",
            summary="OpenVLA-OFT: a chunk of actions in one pass, from pictures, instruction and state",
            config=OpenVLAOFTConfig,
            target="rlinf_model_openvla.oft.model:OpenVLAOFT",
            provides=_PROVIDES,
            suggests=_SUGGESTS,
            example={"preset": "tiny"},
        ),
    ]
