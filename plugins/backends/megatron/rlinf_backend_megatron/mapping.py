"""Which Hugging Face tensors make up which Megatron parameter, and how either is made of the other.

A piece is one Megatron parameter (or one of each local expert). Axes: F features out, E features in,
X experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlinf_backend_megatron.architecture import Architecture
from rlinf_core.errors import ModelError

Split = Literal["none", "rows", "columns", "halves", "experts"]


@dataclass(frozen=True)
class Form:
    """What a whole Hugging Face tensor is like."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Piece:
    """`split` says what a rank holds: everything, a block of rows or of columns, a block of rows of each half
    (gate and up), or some experts. With `qkv`, the Megatron tensor holds queries, keys and values group by
    group. `layer` counts over the whole model; None = outside of the layers."""

    hf: tuple[str, ...]
    megatron: tuple[str, ...]  # possible names, of which a network has one; `{x}` counts local experts
    split: Split
    layer: int | None = None
    last: bool = False  # of the pieces outside of the layers: on the last stage, not on the first
    qkv: bool = False
    vocabulary: bool = False  # rows are tokens, padded in Megatron
    extra: bool = False  # beside the architecture's own: trained also where these are not


def pieces(model: Architecture) -> list[Piece]:
    """All pieces of a model, in the order of its layers."""
    found = [
        Piece(("model.embed_tokens.weight",), ("embedding.word_embeddings.weight",), "rows", vocabulary=True)
    ]
    for layer in range(model.layers):
        found += _attention(model, layer)
        found += _experts(layer) if model.experts else _feed_forward(layer)
    found.append(Piece(("model.norm.weight",), ("decoder.final_layernorm.weight",), "none", last=True))
    if not model.tied:
        found.append(Piece(("lm_head.weight",), ("output_layer.weight",), "rows", last=True, vocabulary=True))
    return found


def head_of_tied(model: Architecture) -> Piece:
    """The copy of the embedding that the last of several stages has as its head."""
    return Piece(("model.embed_tokens.weight",), ("output_layer.weight",), "rows", last=True, vocabulary=True)


def _attention(model: Architecture, layer: int) -> list[Piece]:
    names = [f"model.layers.{layer}.self_attn.{kind}_proj" for kind in "qkv"]
    prefix = "self_attention.linear_qkv"
    found = [
        Piece(
            (f"model.layers.{layer}.input_layernorm.weight",),
            ("input_layernorm.weight", f"{prefix}.layer_norm_weight"),
            "none",
            layer,
        ),
        Piece(tuple(f"{name}.weight" for name in names), (f"{prefix}.weight",), "rows", layer, qkv=True),
    ]
    if model.qkv_bias:
        found.append(
            Piece(tuple(f"{name}.bias" for name in names), (f"{prefix}.bias",), "rows", layer, qkv=True)
        )
    if model.qk_norm:
        found += [
            Piece(
                (f"model.layers.{layer}.self_attn.{kind}_norm.weight",),
                (f"self_attention.{kind}_layernorm.weight",),
                "none",
                layer,
            )
            for kind in "qk"
        ]
    output = f"model.layers.{layer}.self_attn.o_proj.weight"
    return [*found, Piece((output,), ("self_attention.linear_proj.weight",), "columns", layer)]


def _feed_forward(layer: int) -> list[Piece]:
    prefix = f"model.layers.{layer}"
    gate_up = (f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight")
    return [
        Piece(
            (f"{prefix}.post_attention_layernorm.weight",),
            ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
            "none",
            layer,
        ),
        Piece(gate_up, ("mlp.linear_fc1.weight",), "halves", layer),
        Piece((f"{prefix}.mlp.down_proj.weight",), ("mlp.linear_fc2.weight",), "columns", layer),
    ]


def _experts(layer: int) -> list[Piece]:
    prefix, local = f"model.layers.{layer}", "mlp.experts.local_experts.{x}"
    return [
        Piece((f"{prefix}.post_attention_layernorm.weight",), ("pre_mlp_layernorm.weight",), "none", layer),
        Piece((f"{prefix}.mlp.gate.weight",), ("mlp.router.weight",), "none", layer),
        Piece((f"{prefix}.mlp.experts.gate_up_proj",), (f"{local}.linear_fc1.weight",), "experts", layer),
        Piece((f"{prefix}.mlp.experts.down_proj",), (f"{local}.linear_fc2.weight",), "experts", layer),
    ]


def join(piece: Piece, tensors: Sequence[Tensor], model: Architecture, padded: int) -> Tensor:
    """The whole Megatron tensor of a piece's Hugging Face tensors."""
    if piece.qkv:
        return _join_qkv(tensors, model)
    if piece.split == "halves":
        return torch.cat(list(tensors))
    whole = tensors[0]
    if piece.vocabulary and padded > len(whole):
        return torch.cat([whole, whole.new_zeros(padded - len(whole), *whole.shape[1:])])
    return whole


def part(piece: Piece, whole: Tensor, model: Architecture) -> list[Tensor]:
    """The piece's Hugging Face tensors of its whole Megatron tensor."""
    if piece.qkv:
        return _part_qkv(whole, model)
    if piece.split == "halves":
        return list(whole.chunk(2))
    return [whole[: model.vocabulary]] if piece.vocabulary else [whole]


def shard(piece: Piece, whole: Tensor, rank: int, size: int) -> Tensor:
    """What one of `size` ranks holds of a whole Megatron tensor."""
    if size == 1 or piece.split == "none":
        return whole
    if piece.split == "halves":
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    return whole.chunk(size, dim=1 if piece.split == "columns" else 0)[rank]


def merge(piece: Piece, shards: Sequence[Tensor]) -> Tensor:
    """The whole Megatron tensor of all ranks' shards."""
    if len(shards) == 1 or piece.split == "none":
        return shards[0]
    if piece.split == "halves":
        halves = [held.chunk(2) for held in shards]
        return torch.cat([*(gate for gate, _ in halves), *(up for _, up in halves)])
    return torch.cat(list(shards), dim=1 if piece.split == "columns" else 0)


def check_names(model: Architecture, hf_names: set[str]) -> None:
    """Raise `ModelError` where the table and the module's parameters differ."""
    mapped = {name for piece in pieces(model) for name in piece.hf}
    if mapped != hf_names:
        raise ModelError(
            f"backend megatron: the {model.model_type} module has parameters that are not mapped "
            f"({', '.join(sorted(hf_names - mapped)[:3]) or 'none'}) or lacks mapped ones "
            f"({', '.join(sorted(mapped - hf_names)[:3]) or 'none'})"
        )


def _join_qkv(tensors: Sequence[Tensor], model: Architecture) -> Tensor:
    """Each group's queries, then its key, then its value."""
    grouped = [tensor.unflatten(0, (model.groups, -1)) for tensor in tensors]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _part_qkv(whole: Tensor, model: Architecture) -> list[Tensor]:
    queries = model.heads // model.groups * model.head_dim
    grouped = whole.unflatten(0, (model.groups, -1))
    return [found.flatten(0, 1) for found in grouped.split([queries, model.head_dim, model.head_dim], dim=1)]
