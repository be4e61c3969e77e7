"""A small model of the same architecture, with random weights and a tokenizer of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_model_openvla.prompts import BEFORE, BEHIND, BOS, SPACE

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_VOCABULARY, _PADDING = 576, 64
_ENCODER = {"embed_dim": 48, "depth": 3, "num_heads": 4}


def tiny_record() -> dict[str, Any]:  # Any: JSON values
    """What `config.json` says: half a million parameters, pictures of 56 x 56 in 16 patches."""
    return {
        "arch_specifier": "no-align+fused-gelu-mlp",
        "architectures": ["OpenVLAForActionPrediction"],
        "image_resize_strategy": "resize-naive",
        "image_sizes": [56, 56],
        "model_type": "openvla",
        "n_action_bins": 256,
        "norm_stats": {},
        "pad_to_multiple_of": _PADDING,
        "pad_token_id": _VOCABULARY,
        "text_config": {
            "model_type": "llama",
            "pad_token_id": _VOCABULARY,
            "vocab_size": _VOCABULARY + _PADDING,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "initializer_range": 0.2,  # logits differ from the start, and learning has something to go by
            "max_position_embeddings": 1024,
        },
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_model_args": [_ENCODER, _ENCODER],
        "timm_override_act_layers": [None, None],
        "use_fused_vision_backbone": True,
    }


def tiny_tokenizer() -> Tokenizer:
    """Llama's rules over bytes, with one token for either end of the question."""
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
    return tokenizer
