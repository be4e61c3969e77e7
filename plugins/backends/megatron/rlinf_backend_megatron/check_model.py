"""What the conformance kit trains with this backend: a Qwen2 of eight tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf_core.api import TokenRows
from rlinf_core.testing.fakes import CONTEXT, VOCABULARY, TinyTextModel


class CheckModel(TinyTextModel):
    """The kit's own model with a module that is mapped to Megatron."""

    def module(self, seed: int = 0) -> Any:  # Any: transformers modules are not typed
        """Initialised from `seed` alone."""
        from transformers import AutoModelForCausalLM, Qwen2Config

        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config)

    def token_rows(self, inputs: Mapping[str, Tensor]) -> TokenRows:
        """The rows as `collate` made them."""
        lengths_B = (inputs["response_BT"] > 0).sum(1)
        width = inputs["response_BT"].shape[1]
        return TokenRows(inputs["ids_BL"], inputs["prompt_lengths_B"], lengths_B, width)
