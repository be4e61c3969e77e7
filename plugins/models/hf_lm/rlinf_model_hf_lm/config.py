"""Settings of the `hf_lm` model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf_core.errors import ConfigError

PRESETS = ("char-llama", "tiny-llama", "tiny-qwen2", "tiny-qwen3")


@dataclass(frozen=True)
class HFLMConfig:
    """Which model, how it is loaded, and how prompts become token ids."""

    path: str = ""  # directory, hub id, GGUF file, or "package:NAME" for the GGUF in a Python package
    preset: str = ""  # a small architecture with random weights, instead of `path`
    dtype: Literal["float32", "bfloat16", "float16"] = field(  # of the parameters
        default="float32", metadata={"less_memory": "bfloat16"}
    )
    decode_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of rollout; auto = as `dtype`
    chat_template: Literal["auto", "always", "never"] = "auto"  # auto = for chat messages, not for texts
    system_prompt: str = ""  # put before the messages where the chat template is applied
    trust_remote_code: bool = False  # run Python code that comes with the model
    attn_implementation: str = ""  # "sdpa", "eager", ...; "" = what transformers picks
    packing: Literal["auto", "always", "never"] = "auto"  # of rows, without padding; auto = if possible

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise ConfigError(
                f"model.preset: hf_lm has no preset {self.preset!r}; presets: {', '.join(PRESETS)}"
            )
        if self.preset and self.path:
            raise ConfigError(
                f"model.path and model.preset are both set ({self.path!r}, {self.preset!r}); keep one"
            )
        for name, value, allowed in (
            ("dtype", self.dtype, ("float32", "bfloat16", "float16")),
            ("decode_dtype", self.decode_dtype, ("auto", "float32", "bfloat16")),
            ("chat_template", self.chat_template, ("auto", "always", "never")),
            ("packing", self.packing, ("auto", "always", "never")),
        ):
            if value not in allowed:
                raise ConfigError(f"model.{name}: {value!r} is not one of {', '.join(allowed)}")
        if self.system_prompt and self.chat_template == "never":
            raise ConfigError(
                "model.system_prompt needs the chat template, but model.chat_template is 'never'"
            )
