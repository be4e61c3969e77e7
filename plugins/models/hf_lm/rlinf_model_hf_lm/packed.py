"""Weights of a Llama-like module in the form that decoding reads: projections joined, adapters merged.

Nothing here changes the module. Joined and merged weights are private copies; everything else is a
view of the module's own parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_model_hf_lm.architecture import causal_lm, in_llama_family, is_plain, is_plain_linear

JOIN_BELOW_BYTES = 1 << 30  # joined copies of larger models would cost too much memory
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})  # angles independent of the length


@dataclass(frozen=True)
class Projection:
    """One or several linear layers that read the same input; outputs side by side."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs = [functional.linear(inputs, w, b) for w, b in zip(self.weights, self.biases, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def joined(self) -> Projection:
        """The same map as a single layer with weights of its own."""
        if len(self.weights) == 1:
            return self
        bias = None
        if any(b is not None for b in self.biases):
            parts = [
                w.new_zeros(len(w)) if b is None else b
                for w, b in zip(self.weights, self.biases, strict=True)
            ]
            bias = torch.cat(parts)
        return Projection((torch.cat(self.weights),), (bias,))


@dataclass(frozen=True)
class Block:
    """The weights of one decoder layer."""

    attention_norm: Tensor
    qkv: Projection
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True)
class Packed:
    """The weights of a whole model."""

    embedding: Tensor
    blocks: tuple[Block, ...]
    norm: Tensor
    head: Tensor
    eps: float


def can_pack(module: nn.Module) -> bool:
    """True when `module` is of the Llama family and every part of it is one that `pack` understands."""
    if not in_llama_family(module):
        return False
    model = causal_lm(module)
    config = model.config
    return (
        config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type", "default") in STATIC_ROPE
        and config.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
        and is_plain_linear(model.lm_head)
        and model.lm_head.bias is None
        and type(model.model.embed_tokens) is nn.Embedding
        and all(is_plain(parameter) for parameter in module.parameters())
        and all(_is_dense(layer) for block in model.model.layers for layer in _linears(block))
    )


def pack(module: nn.Module, dtype: torch.dtype) -> Packed:
    """Read the module's weights as `dtype`."""
    model = causal_lm(module)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    join = size < JOIN_BELOW_BYTES

    def read(parameter: Tensor | None) -> Tensor | None:
        return None if parameter is None else parameter.detach().to(dtype)

    def project(*layers: Any) -> Projection:
        dense = [_dense(layer) for layer in layers]
        weights = tuple(weight.to(dtype) for weight, _ in dense)
        projection = Projection(weights, tuple(read(bias) for _, bias in dense))
        return projection.joined() if join else projection

    blocks = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        blocks.append(
            Block(
                attention_norm=layer.input_layernorm.weight.detach().to(dtype),
                qkv=project(attention.q_proj, attention.k_proj, attention.v_proj),
                query_norm=None if query_norm is None else read(query_norm.weight),
                key_norm=None if key_norm is None else read(key_norm.weight),
                out=project(attention.o_proj),
                mlp_norm=layer.post_attention_layernorm.weight.detach().to(dtype),
                gate_up=project(mlp.gate_proj, mlp.up_proj),
                down=project(mlp.down_proj),
            )
        )
    return Packed(
        embedding=model.model.embed_tokens.weight.detach().to(dtype),
        blocks=tuple(blocks),
        norm=model.model.norm.weight.detach().to(dtype),
        head=model.lm_head.weight.detach().to(dtype),
        eps=model.config.rms_norm_eps,
    )


def _linears(block: Any) -> list[Any]:  # Any: transformers modules are not typed
    attention, mlp = block.self_attn, block.mlp
    return [
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    ]


def _is_dense(layer: Any) -> bool:
    adapted = getattr(layer, "base_layer", None)
    if adapted is None:
        return is_plain_linear(layer)
    return is_plain_linear(adapted) and hasattr(layer, "get_delta_weight") and not layer.merged


def _dense(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer, active adapters added to a copy of the weight."""
    base = getattr(layer, "base_layer", layer)
    weight: Tensor = base.weight.detach()
    if base is not layer and not layer.disable_adapters:
        for adapter in layer.active_adapters:
            if adapter in layer.lora_A:
                weight = weight + layer.get_delta_weight(adapter).detach()
                if adapter in layer.lora_magnitude_vector:  # of directions alone
                    lengths = layer.lora_magnitude_vector[adapter].weight.detach()
                    weight = weight * (lengths / weight.norm(dim=1))[:, None]
    return weight, base.bias
