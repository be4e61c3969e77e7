"""Processors of transformers with the part for videos left out, which needs torchvision (and num2words)."""

from __future__ import annotations

from typing import Any

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm")


def make(model_config: Any, image_processor: Any, tokenizer: Any) -> Any:  # Any: transformers types
    """A processor for texts and images of a model of these kinds."""
    if model_config.model_type == "smolvlm":
        return _idefics(model_config, image_processor, tokenizer)
    from transformers import Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen3VLProcessor

    classes = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}
    own = classes[model_config.model_type]

    images_only = type(own.__name__, (own,), {"__init__": _start})  # it is saved under the class's name
    return images_only(image_processor, tokenizer, chat_template=tokenizer.chat_template)


def _start(self: Any, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
    """What the classes' own constructors do, but for videos. Transformers reads the parameters' names."""
    from transformers import ProcessorMixin

    ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
    for name, token in (
        ("image_token", "<|image_pad|>"),
        ("video_token", "<|video_pad|>"),
        ("vision_start_token", "<|vision_start|>"),
        ("vision_end_token", "<|vision_end|>"),
    ):
        setattr(self, name, token)
        setattr(self, f"{name}_id", tokenizer.convert_tokens_to_ids(token))


def _idefics(model_config: Any, image_processor: Any, tokenizer: Any) -> Any:
    """SmolVLM writes images like Idefics3, whose processor knows no videos."""
    from transformers import Idefics3Processor

    vision = model_config.vision_config
    across = vision.image_size // vision.patch_size // model_config.scale_factor
    return Idefics3Processor(
        image_processor, tokenizer, image_seq_len=across**2, chat_template=tokenizer.chat_template
    )
