"""Layers of engines that fuse what the model's own format keeps apart, or wrap it for adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

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
    """Parameters of the model, without adapters, with the names of what they are made of. Where processes
    hold keys and values more often than queries, each of them comes by itself."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        rows = _replicated(owners[name.rpartition(".")[0]])
        module, _, leaf = name.replace(WRAPPED, "").rpartition(".")
        parent, _, last = module.rpartition(".")
        names = [f"{parent}.{part}.{leaf}".lstrip(".") for part in fused.get(last, [last])]
        if len(rows) == len(names):
            for part, begin, count in zip(names, accumulate(rows, initial=0), rows, strict=False):
                yield [part], parameter.narrow(0, begin, count)
        else:
            yield names, parameter


def _replicated(layer: Any) -> list[int]:  # Any: a layer of an engine's library
    """Rows of queries, keys and values in a layer whose keys and values others hold too; else none."""
    if getattr(layer, "num_kv_head_replicas", 1) == 1:
        return []
    keys = layer.num_kv_heads * layer.head_size
    values = layer.num_kv_heads * getattr(layer, "v_head_size", layer.head_size)
    return [layer.num_heads * layer.head_size, keys, values]
