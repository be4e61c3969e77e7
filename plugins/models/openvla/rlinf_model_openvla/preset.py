"""A small model of the same architecture, with random weights and a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_model_openvla.prompts import BEFORE, BEHIND, BOS, SPACE

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PADDING = 64


def tiny_record() -> dict[str, Any]:  # Any: JSON values
    """What `config.json` says: half a million parameters, pictures of 56 x 56 in 16 patches."""
    text = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "initializer_range": 0.2,  # logits differ from the start, and learning has something to go by
        "max_position_embeddings": 1024,
    }
    return record_of(56, 256, 576, {"embed_dim": 48, "depth": 3, "num_heads": 4}, text)


def record_of(
    image_size: int, bins: int, vocabulary: int, encoder: Mapping[str, Any], text: Mapping[str, Any]
) -> dict[str, Any]:  # Any: JSON values
    """`config.json` of a model whose encoders have one size; bins are the tail of the vocabulary."""
    return {
        "arch_specifier": "no-align+fused-gelu-mlp",
        "architectures": ["OpenVLAForActionPrediction"],
        "image_resize_strategy": "resize-naive",
        "image_sizes": [image_size, image_size],
        "model_type": "openvla",
        "n_action_bins": bins,
        "norm_stats": {},
        "pad_to_multiple_of": _PADDING,
        "pad_token_id": vocabulary,
        "text_config": {
            "model_type": "llama",
            "pad_token_id": vocabulary,
            "vocab_size": vocabulary + _PADDING,
            **text,
        },
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_model_args": [dict(encoder), dict(encoder)],
        "timm_override_act_layers": [None, None],
        "use_fused_vision_backbone": True,
    }


def tiny_tokenizer(words: Sequence[str] = ()) -> Tokenizer:
    """Llama's rules over bytes, with one token for either end of the question, and one for each of `words`,
    which takes in the space before it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    named = ["<unk>", BOS, "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    vocabulary = {token: index for index, token in enumerate(named)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in named[:3]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (BEFORE, BEHIND)])
    whole = [AddedToken(word, single_word=True, lstrip=True, normalized=False) for word in words]
    tokenizer.add_tokens(whole)
    return tokenizer
