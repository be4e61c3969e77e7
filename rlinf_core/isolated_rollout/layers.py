"""Layers of engines that fuse what the model's own format keeps apart, or wrap it for adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

WRAPPED = ".base_layer"  # in names of layers that have adapters
Fused = Mapping[str, Sequence[str]]  # layer of the engine -> the layers that it is made of


def wrapped_layers(model: nn.Module) -> set[str]:
    """Layers with adapters, by their names without the wrapping."""
    return {name.rpartition(WRAPPED)[0] for name, _ in model.named_parameters() if WRAPPED in name}


def placed(name: str, wrapped: set[str], fused: Fused) -> str:
    """The name under which a model with adapters has the weight `name` of the model's own format."""
    module, _, leaf = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    owner = next((whole for whole, parts in fused.items() if last in parts), last)
    if module in wrapped or (f"{parent}.{owner}" if parent else owner) in wrapped:
        return f"{module}{WRAPPED}.{leaf}"
    return name


def installed(model: nn.Module, fused: Fused) -> Iterator[tuple[list[str], Tensor]]:
    """Parameters of the model, without adapters, with the names of what they are made of."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        module, _, leaf = name.replace(WRAPPED, "").rpartition(".")
        parent, _, last = module.rpartition(".")
        yield [f"{parent}.{part}.{leaf}".lstrip(".") for part in fused.get(last, [last])], parameter
