"""The parts of a vision-language model of transformers, whatever their names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from rlinf_core.errors import ModelError

LANGUAGE = ("language_model", "text_model")  # what transformers calls it in the trunk


def conditional(module: nn.Module) -> Any:  # Any, below too: transformers modules are not typed
    """The `...ForConditionalGeneration` below adapters."""
    base = getattr(module, "get_base_model", None)
    return base() if callable(base) else module


def trunk(module: nn.Module) -> Any:
    """What turns tokens and images into hidden states."""
    return conditional(module).model


def language(module: nn.Module) -> nn.Module:
    """The language model within the trunk."""
    inner = trunk(module)
    found: nn.Module = next(getattr(inner, name) for name in LANGUAGE if hasattr(inner, name))
    return found


def check(module: nn.Module) -> None:
    """Raises `ModelError` for a model that this plugin cannot take apart."""
    inner = getattr(module, "model", None)
    lacks = [
        what
        for what, there in (
            ("model", inner is not None),
            ("lm_head", hasattr(module, "lm_head")),
            ("get_image_features", hasattr(inner, "get_image_features")),
            ("a language_model", any(hasattr(inner, name) for name in LANGUAGE)),
            ("mm_encoder_outputs", inner is not None and takes(inner.forward, "mm_encoder_outputs")),
        )
        if not there
    ]
    if lacks:
        raise ModelError(
            f"hf_vlm: {type(module).__name__} is not built like the vision-language models that this plugin "
            f"knows: it lacks {', '.join(lacks)}. Models that do are Qwen-VL, Idefics3, SmolVLM and PaliGemma"
        )


def takes(function: Any, name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def text_config(module: nn.Module) -> Any:
    """The configuration of the language model."""
    return conditional(module).config.get_text_config()


def blocks(module: nn.Module) -> list[nn.Module]:
    """The layers of the vision encoder and of the language model."""
    return [block for block in _repeated(trunk(module)) if any(True for _ in block.parameters())]


def is_whole(module: nn.Module) -> bool:
    """True when blocks may be called more than once in a pass: nothing is sharded or recomputed."""
    return all(type(parameter) in (Tensor, nn.Parameter) for parameter in module.parameters()) and not any(
        "forward" in block.__dict__ for block in blocks(module)
    )


def logits(module: nn.Module, hidden_NE: Tensor) -> Tensor:
    """`[N, V]` of final hidden states."""
    logits_NV: Tensor = conditional(module).lm_head(hidden_NE)
    cap = getattr(text_config(module), "final_logit_softcapping", None)
    return logits_NV if not cap else (logits_NV / cap).tanh() * cap


def _repeated(part: nn.Module) -> Iterator[nn.Module]:
    for child in part.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _repeated(child)
