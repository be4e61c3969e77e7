"""A small model of the same architecture in sizes of the user's choice, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_model_openvla.preset import record_of, tiny_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rlinf_model_openvla.oft.config import TinySizes

# each is one token, with the space before it; other words are spelt in bytes
WORDS = (
    *("a", "and", "from", "in", "into", "it", "of", "on", "the", "then", "to", "with"),
    *("black", "blue", "green", "orange", "purple", "red", "white", "yellow"),
    *("ball", "block", "bowl", "box", "button", "cube", "cup", "door", "drawer", "goal", "plate", "target"),
    *(
        "close",
        "lift",
        "move",
        "open",
        "pick",
        "place",
        "press",
        "pull",
        "push",
        "put",
        "reach",
        "touch",
        "up",
    ),
    *("back", "bottom", "down", "front", "left", "right", "top"),
)
_BEFORE_BINS = 320  # bytes, words and the ends of the question lie below


def sized_record(sizes: TinySizes) -> dict[str, Any]:  # Any: JSON values
    """What `config.json` says."""
    encoder = {
        "embed_dim": sizes.vision_width,
        "depth": sizes.vision_depth,
        "num_heads": sizes.vision_heads,
        "patch_size": sizes.patch_size,
    }
    text = {
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp_width,
        "num_hidden_layers": sizes.depth,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "initializer_range": sizes.initializer_range,
        "max_position_embeddings": 4096,
    }
    return record_of(sizes.image_size, sizes.bins, _BEFORE_BINS + sizes.bins, encoder, text)


def word_tokenizer() -> Tokenizer:
    """Bytes, and whole words."""
    return tiny_tokenizer(WORDS)
