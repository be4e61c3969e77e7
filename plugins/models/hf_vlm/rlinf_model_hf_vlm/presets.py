"""Small vision-language models with random weights, for tests and the recipe."""

from __future__ import annotations

from typing import Any

from rlinf_model_hf_vlm import images_only

CONTEXT = 256
HIDDEN = 64
PIXELS = 32  # width and height of pictures
SPECIALS = {
    "qwen": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "idefics": ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
}
IMAGE = {"qwen": "<|vision_start|><|image_pad|><|vision_end|>", "idefics": "<image>"}
PAD, BOS, EOS = 0, 1, 2
WORDS = (
    ("Count", "Where"),
    ("that", "are", "is", "the", "red", "green", "blue", "yellow", "block", "blocks", "seen", "from", "one"),
)


def preset_config(preset: str) -> Any:  # Any: a transformers configuration
    """The transformers configuration of a preset."""
    return {
        "tiny-smolvlm": _smolvlm,
        "tiny-qwen2_5_vl": _qwen2_5,
        "tiny-qwen3_vl": _qwen3,
        "tiny-paligemma": _paligemma,
    }[preset]()


def preset_processor(preset: str) -> Any:  # Any: a transformers processor
    """The classes that real models of the kind have, with a tokenizer of bytes and a few words."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    config = preset_config(preset)
    if preset == "tiny-paligemma":
        from transformers import PaliGemmaProcessor

        whole: Any = SiglipImageProcessorPil(size={"height": PIXELS, "width": PIXELS})
        whole.image_seq_length = config.vision_config.num_image_tokens
        return PaliGemmaProcessor(whole, _tokenizer("idefics"))
    if preset == "tiny-smolvlm":
        edge = {"longest_edge": PIXELS}
        parts = SmolVLMImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
        return images_only.make(config, parts, _tokenizer("idefics", template=True))
    vision = config.vision_config
    pictures = Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        size={"shortest_edge": PIXELS**2, "longest_edge": PIXELS**2},
    )
    return images_only.make(config, pictures, _tokenizer("qwen", template=True))


def _tokenizer(kind: str, *, template: bool = False) -> Any:
    """Bytes, and the words of `WORDS`, each one token with the space before it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges = _merges()
    names = [*_all_specials(kind), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [first + second for first, second in merges]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(SPECIALS[kind]),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    if template:
        made.chat_template = (
            "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}"
            + IMAGE[kind]
            + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
        )
    return made


def _all_specials(kind: str) -> tuple[str, ...]:
    return ("<pad>", "<s>", "</s>", *SPECIALS[kind])


def _merges() -> list[tuple[str, str]]:
    """Words grow letter by letter from their beginning, so that no word stands in another's way."""
    starts, others = WORDS
    merges: dict[tuple[str, str], None] = {}
    for word in (*starts, *(f"\u0120{word}" for word in others)):
        for length in range(1, len(word)):
            merges[word[:length], word[length]] = None
    return list(merges)


def _vocabulary(kind: str) -> int:
    return len(_all_specials(kind)) + 256 + len({first + second for first, second in _merges()})


def _text(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": _vocabulary(kind),
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "initializer_range": 0.1,  # about 1 / sqrt(HIDDEN): with less, attention takes long to find anything
        **more,
    }


def _siglip() -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": PIXELS,
        "patch_size": PIXELS // 4,
    }


def _smolvlm() -> Any:
    from transformers import SmolVLMConfig

    more: dict[str, Any] = {"pad_token_id": PAD}
    return SmolVLMConfig(
        image_token_id=3,
        scale_factor=1,
        tie_word_embeddings=False,
        **more,
        vision_config=_siglip(),
        text_config=_text("idefics", model_type="llama", tie_word_embeddings=False),
    )


def _paligemma() -> Any:
    from transformers import PaliGemmaConfig

    vision = {**_siglip(), "model_type": "siglip_vision_model", "vision_use_head": False}
    own: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    return PaliGemmaConfig(
        image_token_index=3,
        projection_dim=HIDDEN,
        hidden_size=HIDDEN,
        **own,
        vision_config={**vision, "num_image_tokens": 16, "projection_dim": HIDDEN},
        text_config=_text("idefics", model_type="gemma", head_dim=16, num_image_tokens=16),
    )


def _qwen2_5() -> Any:
    from transformers import Qwen2_5_VLConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    return Qwen2_5_VLConfig(
        **_qwen_tokens(),
        vision_config=_qwen_vision(window_size=16, fullatt_block_indexes=[1]),
        text_config=_text("qwen", rope_parameters=rope, tie_word_embeddings=False),
    )


def _qwen3() -> Any:
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}
    return Qwen3VLConfig(
        **_qwen_tokens(),
        vision_config=_qwen_vision(num_position_embeddings=64, deepstack_visual_indexes=[0]),
        text_config=_text("qwen", rope_parameters=rope, head_dim=16, tie_word_embeddings=False),
    )


def _qwen_vision(**more: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_heads": 4,
        "out_hidden_size": HIDDEN,
        "patch_size": 4,
        "spatial_merge_size": 2,
        **more,
    }


def _qwen_tokens() -> dict[str, Any]:
    return {
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "image_token_id": 5,
        "video_token_id": 6,
        "tie_word_embeddings": False,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
