"""Sizes of a model, from the `config.json` of its checkpoint. Any: JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf_core.errors import ModelError
from rlinf_model_openvla.actions import ActionTokens
from rlinf_model_openvla.vision import SHAPES, EncoderShape

_ARCHITECTURE = "no-align+fused-gelu-mlp"


@dataclass(frozen=True)
class Architecture:
    """`record` is the whole of `config.json`; `text` are arguments of transformers' `LlamaConfig`."""

    record: Mapping[str, Any]
    encoders: tuple[EncoderShape, EncoderShape]
    image_size: int
    text: Mapping[str, Any] = field(default_factory=dict)
    tokens: ActionTokens = field(default_factory=lambda: ActionTokens(32000, 256))

    @classmethod
    def of(cls, record: Mapping[str, Any], where: str) -> Architecture:
        """Raises `ModelError`, about what is found `where`, for what is not in the layout of openvla-7b."""
        needed = ("timm_model_ids", "image_sizes", "text_config")
        missing = [name for name in needed if name not in record]
        if missing:
            raise ModelError(f"{where} has no {', '.join(missing)}: it is no OpenVLA checkpoint")
        kind = record.get("arch_specifier", _ARCHITECTURE)
        names = list(record["timm_model_ids"])
        if kind != _ARCHITECTURE or len(names) != 2:
            raise ModelError(
                f"{where} describes {kind} over {' and '.join(names)}; only "
                f"{_ARCHITECTURE} over two encoders is supported"
            )
        arguments = record.get("timm_model_args", [{}, {}])
        encoders = [_encoder(name, each, where) for name, each in zip(names, arguments, strict=True)]
        sizes = set(record["image_sizes"])
        if len(sizes) != 1:
            raise ModelError(f"{where}: image_sizes differ: {sorted(sizes)}")
        text = {name: value for name, value in record["text_config"].items() if name not in _NOT_OF_LLAMA}
        padding = record.get("pad_to_multiple_of", 64)
        vocabulary = text.get("vocab_size", 32000 + padding) - padding
        tokens = ActionTokens(vocabulary, record.get("n_action_bins", 256))
        return cls(record, (encoders[0], encoders[1]), sizes.pop(), text, tokens)


_NOT_OF_LLAMA = ("model_type", "torch_dtype", "dtype", "_name_or_path", "architectures")


def _encoder(name: str, arguments: Mapping[str, Any], where: str) -> EncoderShape:
    """`arguments` change the sizes that the name stands for, as in timm."""
    shape = SHAPES.get(name.partition(".")[0])
    if shape is None:
        raise ModelError(f"{where} names the encoder {name!r}; known: {', '.join(SHAPES)}")
    return replace(shape, **arguments)
