"""Registers the `hf_lm` model."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_hf_lm.config import HFLMConfig


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """The one model of this distribution."""
    return [
        ModelSpec(
            name="hf_lm",
            summary="Causal language models of transformers (directory, hub id, GGUF) and tiny presets",
            target="rlinf_model_hf_lm.model:HFLM",
            config=HFLMConfig,
            provides=ModelCapabilities(modality="text", value_head=True, lora=True),
        )
    ]
