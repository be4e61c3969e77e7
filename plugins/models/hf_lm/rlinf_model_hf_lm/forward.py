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
from rlinf_model_hf_lm.attention import attend
from rlinf_model_hf_lm.layout import Layout, layout
from rlinf_model_hf_lm.packing import takes_packed_rows
from rlinf_model_hf_lm.rotary import rotate, signed_sine


def response_hidden(
    module: nn.Module, inputs: Mapping[str, Tensor], mask_BT: Tensor, source_BT: Tensor, *, packed: bool
) -> Tensor:
    """`[N, E]` for the True positions of `mask_BT`, rows in order.

    `packed` computes shared prompts once and no padding, where the module takes packed rows: block by
    block where these may be taken apart, else by its own forward. Other modules get padded rows.
    """
    model = causal_lm(module).base_model
    rows = packed_rows(module, inputs, mask_BT) if packed else None
    if rows is not None:
        if blocks_may_be_read(module):
            return _packed_hidden(model, inputs, rows).index_select(0, rows.outputs)
        hidden_1NE: Tensor = model(**packed_call(inputs, rows)).last_hidden_state
        return hidden_1NE[0].index_select(0, rows.outputs)
    ids_BL = inputs["input_ids"][:, :-1]
    hidden_BLE: Tensor = model(input_ids=ids_BL, use_cache=False).last_hidden_state
    rows_BT = mask_BT.nonzero()[:, 0]
    return hidden_BLE.flatten(0, 1).index_select(0, rows_BT * ids_BL.shape[1] + source_BT[mask_BT])


def packed_rows(module: nn.Module, inputs: Mapping[str, Tensor], mask_BT: Tensor) -> Layout | None:
    """The layout of collated rows; None where the module takes none, or padding is as good."""
    if not (takes_packed_rows(module) or blocks_may_be_read(module)):
        return None
    return layout(inputs, mask_BT)


def packed_call(inputs: Mapping[str, Tensor], rows: Layout) -> dict[str, Any]:
    """Arguments of the module's own forward. A mask of four axes is taken as it is, so that none is made:
    packed rows need no mask over all pairs of their tokens."""
    ids_N = inputs["input_ids"].flatten()[rows.source_N]
    return {
        "input_ids": ids_N[None],
        "position_ids": rows.positions_N[None],
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids_N.device),
        "use_cache": False,
        "packed_rows": rows,
    }


def _packed_hidden(model: Any, inputs: Mapping[str, Tensor], rows: Layout) -> Tensor:
    hidden_NE = model.embed_tokens(inputs["input_ids"].flatten()[rows.source_N])
    cos, sin = model.rotary_emb(hidden_NE, rows.positions_N[None])
    rotation = (cos[0].unsqueeze(1), signed_sine(sin[0]).unsqueeze(1))
    for block in model.layers[: model.config.num_hidden_layers]:
        normed = _norm(block.input_layernorm, hidden_NE)
        hidden_NE = hidden_NE + _attention(block.self_attn, normed, rotation, rows)
        normed, mlp = _norm(block.post_attention_layernorm, hidden_NE), block.mlp
        gated = functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed)
        hidden_NE = hidden_NE + mlp.down_proj(gated)
    return _norm(model.norm, hidden_NE)


def _attention(attention: Any, normed_NE: Tensor, rotation: tuple[Tensor, Tensor], rows: Layout) -> Tensor:
    head_dim = attention.head_dim
    queries, keys, values = (
        layer(normed_NE).unflatten(-1, (-1, head_dim))
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        queries, keys = _norm(attention.q_norm, queries), _norm(attention.k_norm, keys)
    queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
    mixed: Tensor = attention.o_proj(attend(queries, keys, values, rows, attention.scaling))
    return mixed


def _norm(layer: Any, hidden: Tensor) -> Tensor:
    weight = layer.weight.to(hidden.dtype)
    return functional.rms_norm(hidden, weight.shape, weight, layer.variance_epsilon)
