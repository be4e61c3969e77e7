"""Low-rank adapters (Hu et al. 2021) beside Megatron's parallel linear layers, split as these are.

Megatron joins queries, keys and values, and gate and up, in one layer each; their adapters are apart, as they
are in peft. Axes: F features out, E features in, R rank of the adapters; all as this rank has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn
from torch.nn import functional

from rlinf_backend_megatron.architecture import Architecture

PLACES = {  # Megatron's layer: the adapters of its parts
    "self_attention.linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "self_attention.linear_proj": ("o_proj",),
    "mlp.linear_fc1": ("gate_proj", "up_proj"),
    "mlp.linear_fc2": ("down_proj",),
}
READ_IN_PARTS = ("o_proj", "down_proj")  # ranks share their input, not their output


class Adapter(nn.Module):
    """What one linear layer gets added; `parts` says that this rank has a part of its input."""

    def __init__(self, outputs: int, inputs: int, rank: int, scale: float, *, parts: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.empty(outputs, rank))
        self.scale, self.parts = scale, parts
        set_tensor_model_parallel_attributes(self.a if parts else self.b, True, 1 if parts else 0, 1)

    def forward(self, states_E: Tensor) -> Tensor:
        """`[..., F]`. What ranks sum has as many numbers as the adapter's rank, forward or backward."""
        low_R = functional.linear(states_E, self.a)
        if self.parts:
            low_R = reduce_from_tensor_model_parallel_region(low_R)
        else:
            low_R = copy_to_tensor_model_parallel_region(low_R)
        return functional.linear(low_R, self.b) * self.scale


class LayerAdapters(nn.Module):
    """Those of one layer, by the names of the Hugging Face linear layers."""


class Switch:
    """Whether the adapters of a network are used."""

    on = True


def attach(
    network: Any, model: Architecture, linears: tuple[str, ...], rank: int, scale: float, ranks: int
) -> Switch:
    """Give every layer of a network its adapters, values not yet filled, and let nothing else be trained.
    Any: Megatron is not typed."""
    network.requires_grad_(False)
    names = [linear.partition(".")[2] for linear in linears]  # in one order on all ranks
    switch = Switch()
    for layer in network.decoder.layers:
        layer.adapters = LayerAdapters()
        for name in names:
            outputs, inputs = _sizes(model, name, ranks)
            layer.adapters.add_module(
                name, Adapter(outputs, inputs, rank, scale, parts=name in READ_IN_PARTS)
            )
        for place, parts in PLACES.items():
            if set(names) & set(parts):
                sizes = [_sizes(model, part, ranks)[0] for part in parts]
                adapters = [getattr(layer.adapters, part, None) for part in parts]
                groups = model.groups // ranks if len(parts) == 3 else 1
                layer.get_submodule(place).register_forward_hook(_adding(adapters, sizes, groups, switch))
    if network.pre_process:  # else layers that are computed again in backward would get no gradient
        network.embedding.register_forward_hook(lambda _module, _given, output: output.requires_grad_())
    return switch


def _sizes(model: Architecture, name: str, ranks: int) -> tuple[int, int]:
    """Features out and in on one of the ranks that share a layer."""
    queries, keys = model.heads * model.head_dim // ranks, model.groups * model.head_dim // ranks
    units = model.feed_forward // ranks
    outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": units, "up_proj": units}
    if name in READ_IN_PARTS:
        return model.hidden, queries if name == "o_proj" else units
    return outputs[name], model.hidden


def _adding(
    adapters: list[Adapter | None], sizes: list[int], groups: int, switch: Switch
) -> Callable[[nn.Module, tuple[Tensor, ...], tuple[Tensor, Any]], tuple[Tensor, Any] | None]:
    """What is called after the linear layer. Parts of its output alternate group by group."""

    def add(_module: nn.Module, given: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> Any:
        if not switch.on:
            return None
        states_E = given[0]
        found = [
            states_E.new_zeros(*states_E.shape[:-1], size) if adapter is None else adapter(states_E)
            for adapter, size in zip(adapters, sizes, strict=True)
        ]
        joined = torch.cat([part.unflatten(-1, (groups, -1)) for part in found], dim=-1).flatten(-2)
        return output[0] + joined, output[1]

    return add
