"""Small architectures with random weights, for quickstarts and tests."""

from __future__ import annotations

from typing import Any

from rlinf_model_hf_lm.characters import BOS, EOS, FULL_ALPHABET, PAD, SMALL_ALPHABET, SPECIALS, CharProcessor

CONTEXT = {"char-llama": 256, "tiny-llama": 512, "tiny-qwen2": 512, "tiny-qwen3": 512}


def preset_processor(preset: str) -> CharProcessor:
    """The character-level processor of a preset."""
    return CharProcessor(SMALL_ALPHABET if preset == "char-llama" else FULL_ALPHABET, CONTEXT[preset])


def preset_config(preset: str) -> Any:  # Any: a transformers configuration
    """The transformers configuration of a preset."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    special: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    if preset == "char-llama":
        return LlamaConfig(
            vocab_size=len(SPECIALS) + len(SMALL_ALPHABET),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT[preset],
            tie_word_embeddings=False,
            **special,
        )
    kinds: dict[str, Any] = {"tiny-llama": LlamaConfig, "tiny-qwen2": Qwen2Config, "tiny-qwen3": Qwen3Config}
    extra: dict[str, Any] = {"head_dim": 32} if preset == "tiny-qwen3" else {}
    return kinds[preset](
        vocab_size=128,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT[preset],
        tie_word_embeddings=True,
        **special,
        **extra,
    )
