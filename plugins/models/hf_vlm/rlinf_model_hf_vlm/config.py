"""Settings of the `hf_vlm` model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf_core.errors import ConfigError

PRESETS = ("tiny-smolvlm", "tiny-qwen2_5_vl", "tiny-qwen3_vl", "tiny-paligemma")


@dataclass(frozen=True)
class HFVLMConfig:
    """Which model, how it is loaded, and what of it is trained."""

    path: str = ""  # a directory written by save_pretrained, or a hub id
    preset: str = ""  # a small architecture with random weights, instead of `path`
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the parameters
    image_size: dict[str, int] = field(default_factory=dict)  # the image processor's `size`; {} = as it comes
    system_prompt: str = ""  # put before the messages where there is a chat template
    freeze_vision: bool = False  # train the language model alone
    adapters: Literal["language", "all"] = "language"  # which part `lora` is about
    trust_remote_code: bool = False  # run Python code that comes with the model
    attn_implementation: str = ""  # "sdpa", "eager", ...; "" = what transformers picks

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise ConfigError(
                f"model.preset: hf_vlm has no preset {self.preset!r}; presets: {', '.join(PRESETS)}"
            )
        if self.preset and self.path:
            raise ConfigError(
                f"model.path and model.preset are both set ({self.path!r}, {self.preset!r}); keep one"
            )
        for name, value, allowed in (
            ("dtype", self.dtype, ("float32", "bfloat16", "float16")),
            ("adapters", self.adapters, ("language", "all")),
        ):
            if value not in allowed:
                raise ConfigError(f"model.{name}: {value!r} is not one of {', '.join(allowed)}")
        if any(number < 1 for number in self.image_size.values()):
            raise ConfigError(f"model.image_size holds numbers of pixels, 1 or more; got {self.image_size}")
