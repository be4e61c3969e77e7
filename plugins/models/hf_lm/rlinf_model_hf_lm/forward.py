"""Final hidden states of the positions that predict response tokens.

Axes: B rows, T response positions, N packed tokens, E hidden size, H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_model_hf_lm.architecture import blocks_may_be_read, causal_lm
from rlinf_model_hf_lm.layout import Layout, layout
from rlinf_model_hf_lm.rotary import rotate, signed_sine


def response_hidden(
    module: nn.Module, inputs: Mapping[str, Tensor], mask_BT: Tensor, source_BT: Tensor, *, packed: bool
) -> Tensor:
    """`[N, E]` for the True positions of `mask_BT`, rows in order.

    `packed` lets Llama-like modules compute shared prompts once and no padding, where their blocks
    may be taken apart; else, and for all other modules, their own forward runs on padded rows.
    """
    model = causal_lm(module).base_model
    if packed and blocks_may_be_read(module):
        places = layout(inputs, mask_BT)
        if places is not None:
            return _packed_hidden(model, places).index_select(0, places.outputs)
    ids_BL = inputs["input_ids"][:, :-1]
    hidden_BLE: Tensor = model(input_ids=ids_BL, use_cache=False).last_hidden_state
    rows_BT = mask_BT.nonzero()[:, 0]
    return hidden_BLE.flatten(0, 1).index_select(0, rows_BT * ids_BL.shape[1] + source_BT[mask_BT])


def _packed_hidden(model: Any, places: Layout) -> Tensor:  # Any: transformers modules are not typed
    hidden_NE = model.embed_tokens(places.ids_N)
    cos, sin = model.rotary_emb(hidden_NE, places.positions_N[None])
    rotation = (cos[0].unsqueeze(1), signed_sine(sin[0]).unsqueeze(1))
    for block in model.layers[: model.config.num_hidden_layers]:
        normed = _norm(block.input_layernorm, hidden_NE)
        hidden_NE = hidden_NE + _attention(block.self_attn, normed, rotation, places)
        normed, mlp = _norm(block.post_attention_layernorm, hidden_NE), block.mlp
        gated = functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed)
        hidden_NE = hidden_NE + mlp.down_proj(gated)
    return _norm(model.norm, hidden_NE)


def _attention(attention: Any, normed_NE: Tensor, rotation: tuple[Tensor, Tensor], places: Layout) -> Tensor:
    """Prompts attend to themselves; responses to their prompt and themselves."""
    head_dim = attention.head_dim
    queries, keys, values = (
        layer(normed_NE).unflatten(-1, (-1, head_dim))
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        queries, keys = _norm(attention.q_norm, queries), _norm(attention.k_norm, keys)
    queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
    options = {"scale": attention.scaling, "enable_gqa": queries.shape[1] != keys.shape[1]}
    prompts = functional.scaled_dot_product_attention(
        _rows(queries, places.prompts_UP),
        _rows(keys, places.prompts_UP),
        _rows(values, places.prompts_UP),
        is_causal=True,
        **options,
    )
    responses = functional.scaled_dot_product_attention(
        _rows(queries, places.responses_BS),
        _rows(keys, places.context_BC),
        _rows(values, places.context_BC),
        attn_mask=places.mask,
        **options,
    )
    parts = (_tokens(prompts, places.prompt_places), _tokens(responses, places.response_places))
    mixed: Tensor = attention.o_proj(torch.cat(parts))
    return mixed


def _norm(layer: Any, hidden: Tensor) -> Tensor:
    weight = layer.weight.to(hidden.dtype)
    return functional.rms_norm(hidden, weight.shape, weight, layer.variance_epsilon)


def _rows(states_NHD: Tensor, index: Tensor) -> Tensor:
    """`[rows, H, columns, D]` of packed states."""
    picked = states_NHD.flatten(1).index_select(0, index.flatten())
    return picked.view(*index.shape, *states_NHD.shape[1:]).transpose(1, 2)


def _tokens(states: Tensor, places: Tensor) -> Tensor:
    """Packed `[N, H * D]` of `[rows, H, columns, D]`, padding left out."""
    flat = states.transpose(1, 2).flatten(2).flatten(0, 1)
    return flat if len(places) == len(flat) else flat.index_select(0, places)
