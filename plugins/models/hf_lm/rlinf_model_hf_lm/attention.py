"""Attention of packed rows: no row sees another, and none is padded further than a call is worth.

It is also an attention implementation of transformers, under the name `NAME`: a forward that is given
`packed_rows=Layout` attends within rows; any other one is as with "sdpa".

Axes: N packed tokens, G rows of a group, Q queries, K keys, H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_core.errors import ModelError
from rlinf_model_hf_lm.layout import Group, Layout

NAME = "rlinf_packed_rows"


def attend(
    queries_NHD: Tensor, keys_NHD: Tensor, values_NHD: Tensor, rows: Layout, scale: float, window: int = 0
) -> Tensor:
    """`[N, H * D]`. A token attends to the tokens of its row up to itself, to `window` of them if not 0."""
    states = (queries_NHD.flatten(1), keys_NHD.flatten(1), values_NHD.flatten(1))
    head_dim = queries_NHD.shape[-1]
    found = []
    for number, (group, *parts) in enumerate(
        zip(rows.whole, *(state.split(rows.sizes) for state in states), strict=False)
    ):
        if group.padded is not None:
            parts = [part.index_select(0, group.padded) for part in parts]
        found.append(_group(group, parts, head_dim, scale, rows.mask(number, group, window)))
    if rows.shared:
        found += _shared(states, rows, head_dim, scale, window)
    return found[0] if len(found) == 1 else torch.cat(found)


def _shared(
    states: tuple[Tensor, ...], rows: Layout, head_dim: int, scale: float, window: int
) -> list[Tensor]:
    """Rows whose prompts lie elsewhere."""
    queried = [len(group.firsts) * group.queries for group in rows.shared]
    held = [len(group.firsts) * group.keys for group in rows.shared]
    wanted = ((rows.queries, queried), (rows.keys, held), (rows.keys, held))
    columns = [
        state.index_select(0, index).split(sizes)
        for state, (index, sizes) in zip(states, wanted, strict=True)
    ]
    return [
        _group(group, list(parts), head_dim, scale, rows.mask(len(rows.whole) + number, group, window))
        for number, (group, *parts) in enumerate(zip(rows.shared, *columns, strict=True))
    ]


def _group(group: Group, parts: list[Tensor], head_dim: int, scale: float, mask: Tensor | None) -> Tensor:
    """Tokens of one group, padding left out."""
    queries, keys, values = (
        part.view(len(group.firsts), -1, part.shape[-1] // head_dim, head_dim).transpose(1, 2)
        for part in parts
    )
    mixed = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    flat = mixed.transpose(1, 2).flatten(2).flatten(0, 1)
    return flat if group.real is None else flat.index_select(0, group.real)


def implementation(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_rows: Layout | None = None,
    **options: Any,  # Any: whatever a model gives to attention
) -> tuple[Tensor, None]:
    """As transformers calls it: `[1, H, N, D]` in, `[1, N, H, D]` out."""
    if packed_rows is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found
    unknown = [name for name in ("softcap", "position_bias", "s_aux") if options.get(name) is not None]
    if dropout or unknown or options.get("is_causal") is False:
        raise ModelError(
            f"hf_lm: packed rows have no {', '.join(unknown) or 'dropout, and attend to what lies before'}, "
            f"which {type(module).__name__} asks for; set model.packing: never"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    states = [state[0].transpose(0, 1) for state in (query, key, value)]
    mixed_NF = attend(states[0], states[1], states[2], packed_rows, scale, options.get("sliding_window") or 0)
    return mixed_NF.view(1, len(mixed_NF), query.shape[1], value.shape[-1]), None


def install(config: Any) -> None:  # Any: a transformers configuration
    """Modules with this configuration take `packed_rows` from now on."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, implementation)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    config._attn_implementation = NAME
