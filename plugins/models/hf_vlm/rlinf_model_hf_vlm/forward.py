"""Hidden states of prompts with images, and of the responses to them.

Prompts are padded on the right, and responses follow behind the padding: masks leave the gap out, and
positions are told to the model, so that nothing depends on how wide a batch is.

Axes: B rows, U distinct prompts, P prompt positions, T response positions, S = T - 1 response inputs,
E hidden size, N response positions of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rlinf_core.errors import ModelError
from rlinf_model_hf_vlm.architecture import conditional, is_whole, takes, text_config, trunk
from rlinf_model_hf_vlm.rows import PIXELS


@dataclass
class Seen:
    """Prompts that were read: the last hidden state of each, and what continues them."""

    last_UE: Tensor
    cache: Any  # Any: transformers' cache
    mask_UP: Tensor
    next_U: Tensor  # the position of the first response token


def response_hidden(module: nn.Module, inputs: Mapping[str, Tensor], mask_BT: Tensor) -> Tensor:
    """`[N, E]` of the states that the response tokens are told from, rows in order.

    A prompt that rows share is computed once, unless blocks are sharded or recomputed: these may be
    called once in a pass.
    """
    read = _shared if is_whole(module) else _row_by_row
    return read(module, inputs)[mask_BT[:, : inputs["response_ids"].shape[1]]]


def read_prompts(module: nn.Module, inputs: Mapping[str, Tensor]) -> Seen:
    """Read every distinct prompt once, into a cache."""
    ids_UP, lengths_U = inputs["prompt_ids"], inputs["prompt_lengths"]
    mask_UP = _mask(lengths_U, ids_UP.shape[1])
    positions, next_U = _prompt_positions(module, inputs, mask_UP)
    cache = DynamicCache(config=text_config(module))
    hidden_UPE = _call(
        module,
        ids_UP,
        mask_UP,
        positions,
        cache=cache,
        features=_features(module, inputs, inputs["image_units"]),
        types=_token_types(module, ids_UP),
    )
    last_UE = hidden_UPE[torch.arange(len(ids_UP), device=ids_UP.device), lengths_U - 1]
    return Seen(last_UE, cache, mask_UP, next_U)


def read_tokens(module: nn.Module, ids_BS: Tensor, mask: Tensor, positions_BS: Tensor, cache: Any) -> Tensor:
    """Hidden states `[B, S, E]` of tokens that follow what is in the cache. `mask` covers both."""
    ids_BS = _written(module, ids_BS)
    return _call(module, ids_BS, mask, _spread(module, positions_BS), cache=cache)


def _shared(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    seen, of_B = read_prompts(module, inputs), inputs["prompt_of"]
    first_B1E = seen.last_UE[of_B][:, None]
    ids_BS, real_BS, positions_BS = _response_inputs(inputs, seen.next_U)
    if not ids_BS.shape[1]:
        return first_B1E
    seen.cache.batch_select_indices(of_B)
    mask = torch.cat([seen.mask_UP[of_B], real_BS], dim=1)
    return torch.cat([first_B1E, read_tokens(module, ids_BS, mask, positions_BS, seen.cache)], dim=1)


def _row_by_row(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    of_B, lengths_U = inputs["prompt_of"], inputs["prompt_lengths"]
    mask_UP = _mask(lengths_U, inputs["prompt_ids"].shape[1])
    positions, next_U = _prompt_positions(module, inputs, mask_UP)
    ids_BS, real_BS, positions_BS = _response_inputs(inputs, next_U)
    prompt_BP = inputs["prompt_ids"][of_B]
    starts_U = inputs["image_counts"].cumsum(0) - inputs["image_counts"]
    units = torch.cat(
        [inputs["image_units"][starts_U[u] : starts_U[u] + inputs["image_counts"][u]] for u in of_B.tolist()]
    )
    hidden = _call(
        module,
        torch.cat([prompt_BP, _written(module, ids_BS)], dim=1),
        torch.cat([mask_UP[of_B], real_BS], dim=1),
        torch.cat([positions.index_select(-2, of_B), _spread(module, positions_BS)], dim=-1),
        features=_features(module, inputs, units),
        types=_token_types(module, prompt_BP, ids_BS.shape[1]),
    )
    rows_B, width = torch.arange(len(of_B), device=of_B.device), prompt_BP.shape[1]
    first_BE = hidden[rows_B, lengths_U[of_B] - 1]
    return torch.cat([first_BE[:, None], hidden[:, width:]], dim=1)


def _call(
    module: nn.Module,
    ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    *,
    cache: Any = None,
    features: Any = None,
    types: Mapping[str, Tensor] | None = None,
) -> Tensor:
    inner = trunk(module)
    name = "cache" if takes(inner.forward, "cache") else "past_key_values"
    options: dict[str, Any] = {} if cache is None else {name: cache}
    if features is not None:
        options["mm_encoder_outputs"] = {"image": features}
    hidden: Tensor = inner(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=positions,
        use_cache=cache is not None,
        **options,
        **(types or {}),
    ).last_hidden_state
    return hidden


def _features(module: nn.Module, inputs: Mapping[str, Tensor], units: Tensor) -> Any:
    """What the vision encoder says of the images, and of its outputs those at `units`. None = no images."""
    inner = trunk(module)
    given = {name.removeprefix(PIXELS): value for name, value in inputs.items() if name.startswith(PIXELS)}
    if not given:
        if not all(type(parameter) in (Tensor, nn.Parameter) for parameter in module.parameters()):
            raise ModelError(
                "hf_vlm: a micro-batch without any image, while other ranks may have some and wait for the "
                "encoder; leave rows without images out, or set backend.sharding=none"
            )
        return None
    accepted = {name: value for name, value in given.items() if takes(inner.get_image_features, name)}
    found = inner.get_image_features(**accepted, return_dict=True)
    chosen = units.tolist()
    found.pooler_output = _pick(found.pooler_output, chosen)
    if getattr(found, "deepstack_features", None) is not None:
        found.deepstack_features = [_pick(layer, chosen) for layer in found.deepstack_features]
    return found


def _pick(features: Any, units: list[int]) -> Any:
    if isinstance(features, Tensor):
        return features[units]
    return [features[unit] for unit in units]


def _prompt_positions(
    module: nn.Module, inputs: Mapping[str, Tensor], mask_UP: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions `[U, P]`, or `[3, U, P]` where images have rows and columns, and where responses begin."""
    inner, lengths_U = trunk(module), inputs["prompt_lengths"]
    if not hasattr(inner, "get_rope_index"):
        positions_UP = torch.arange(mask_UP.shape[1], device=mask_UP.device).expand(mask_UP.shape)
        return positions_UP, lengths_U
    ids_UP = inputs["prompt_ids"]
    options: dict[str, Any] = {"mm_token_type_ids": _is_image(module, ids_UP)}
    grids = inputs.get(f"{PIXELS}image_grid_thw")
    if grids is not None:
        options["image_grid_thw"] = grids[inputs["image_units"]]
    positions_3UP, shift_U1 = inner.get_rope_index(ids_UP, attention_mask=mask_UP.long(), **options)
    return positions_3UP, lengths_U + shift_U1[:, 0]


def _response_inputs(inputs: Mapping[str, Tensor], next_U: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Response tokens but the last, where they are real, and their positions."""
    ids_BS = inputs["response_ids"][:, :-1]
    positions_BS = next_U[inputs["prompt_of"]][:, None] + torch.arange(ids_BS.shape[1], device=next_U.device)
    return ids_BS, _mask(inputs["response_lengths"] - 1, ids_BS.shape[1]), positions_BS


def _spread(module: nn.Module, positions_BS: Tensor) -> Tensor:
    """Text stands at the same place in all three directions."""
    return positions_BS.expand(3, -1, -1) if hasattr(trunk(module), "get_rope_index") else positions_BS


def _token_types(module: nn.Module, prompt_BP: Tensor, written: int = 0) -> dict[str, Tensor]:
    """Which tokens are images, where the model asks; PaliGemma asks which ones it did not write."""
    inner = trunk(module)
    name = "token_type_ids"
    if not takes(inner.forward, name):
        return {}
    wrote = conditional(module).config.model_type == "paligemma"
    types_BP = torch.zeros_like(prompt_BP) if wrote else _is_image(module, prompt_BP)
    return {name: torch.cat([types_BP, types_BP.new_full((len(types_BP), written), int(wrote))], dim=1)}


def _is_image(module: nn.Module, ids: Tensor) -> Tensor:
    image: int = conditional(module).config.image_token_id
    return (ids == image).long()


def _written(module: nn.Module, ids: Tensor) -> Tensor:
    """Response tokens as they are read back: a place for an image that the model wrote itself is none."""
    config = conditional(module).config
    return ids.masked_fill(ids == config.image_token_id, text_config(module).pad_token_id or 0)


def _mask(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]
