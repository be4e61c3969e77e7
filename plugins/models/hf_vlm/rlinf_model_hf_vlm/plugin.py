"""Registers the `hf_vlm` model."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_hf_vlm.config import HFVLMConfig


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """The one model of this distribution."""
    return [
        ModelSpec(
            name="hf_vlm",
            summary="Vision-language models of transformers (directory, hub id) and tiny presets",
            target="rlinf_model_hf_vlm.model:HFVLM",
            config=HFVLMConfig,
            provides=ModelCapabilities(modality="text", value_head=True, lora=True, images=True),
            example={"preset": "tiny-smolvlm"},
        )
    ]
