"""Where the tokens of a micro-batch lie when prompts that rows share are computed once, and padding never.

Packed tokens are all distinct prompts, one after another, then every row's response without its last
token, which predicts nothing.

Axes: B rows, U distinct prompts, P prompt positions, T response positions, S = T - 1 response inputs,
N packed tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

WORTH = 0.85  # of the padded tokens; above that there is little to win
MASK_ELEMENTS = 1 << 27  # attention masks of rows with unequal prompts


@dataclass(frozen=True)
class Layout:
    """Index tensors into the packed tokens; entries for padding point anywhere and are masked."""

    ids_N: Tensor
    positions_N: Tensor
    prompts_UP: Tensor  # packed index of each prompt position
    prompt_places: Tensor  # flat positions in [U, P] of the packed prompt tokens, in order
    responses_BS: Tensor
    response_places: Tensor
    context_BC: Tensor  # packed index of what responses attend to: prompt columns, then response columns
    mask: Tensor  # [B or 1, 1, S, C], True where a response position attends
    outputs: Tensor  # packed index of what predicts each response token, rows in order


def layout(inputs: Mapping[str, Tensor], mask_BT: Tensor) -> Layout | None:
    """The layout of collated rows, or None where computing them padded is as good."""
    ids_BL, prompt_B, response_B = (
        inputs[name] for name in ("input_ids", "prompt_lengths", "response_lengths")
    )
    copies_B = inputs["prompt_copies"]
    rows_B = torch.arange(len(ids_BL), device=ids_BL.device)
    first_U = (copies_B == rows_B).nonzero().squeeze(1)
    prompt_of_B = ((copies_B == rows_B).cumsum(0) - 1)[copies_B]
    packed = int(prompt_B[first_U].sum() + response_B.sum()) - len(rows_B)
    width, steps = int(prompt_B.max()), int(response_B.max()) - 1
    even = bool((prompt_B == width).all())
    mask_size = steps * (width + steps) * (1 if even else len(rows_B))
    if steps < 1 or packed > WORTH * ids_BL.numel() or mask_size > MASK_ELEMENTS:
        return None

    columns_P = torch.arange(width, device=ids_BL.device)
    steps_S = torch.arange(steps, device=ids_BL.device)
    real_UP = columns_P < prompt_B[first_U, None]
    real_BS = steps_S < response_B[:, None] - 1
    positions_BS = prompt_B[:, None] + steps_S
    prompts_UP = (real_UP.flatten().cumsum(0) - 1).view_as(real_UP)
    responses_BS = (real_BS.flatten().cumsum(0) - 1).view_as(real_BS) + int(real_UP.sum())
    last_B1 = prompts_UP[prompt_of_B, prompt_B - 1][:, None]
    ids_BS = ids_BL.gather(1, positions_BS.clamp_max(ids_BL.shape[1] - 1))
    return Layout(
        ids_N=torch.cat([ids_BL[first_U, :width][real_UP], ids_BS[real_BS]]),
        positions_N=torch.cat([columns_P.expand_as(real_UP)[real_UP], positions_BS[real_BS]]),
        prompts_UP=prompts_UP.clamp_min(0),
        prompt_places=real_UP.flatten().nonzero().squeeze(1),
        responses_BS=responses_BS.clamp_min(0),
        response_places=real_BS.flatten().nonzero().squeeze(1),
        context_BC=torch.cat([prompts_UP[prompt_of_B], responses_BS], dim=1).clamp_min(0),
        mask=_mask(prompt_B[:1] if even else prompt_B, columns_P, steps_S),
        outputs=torch.cat([last_B1, responses_BS], dim=1)[mask_BT[:, : steps + 1]],
    )


def _mask(prompt_B: Tensor, columns_P: Tensor, steps_S: Tensor) -> Tensor:
    prompt_B1SP = (columns_P < prompt_B[:, None])[:, None, None].expand(-1, 1, len(steps_S), -1)
    causal_SS = steps_S[:, None] >= steps_S
    return torch.cat([prompt_B1SP, causal_SS.expand(len(prompt_B), 1, -1, -1)], dim=-1)
