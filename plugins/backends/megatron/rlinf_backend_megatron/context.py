"""Which positions of a row a context-parallel rank has: two chunks, an early and a late one, so that causal
attention costs every rank the same. The order is Megatron's.

Axes: L positions of a rank, S positions of all ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor


def positions_of(length: int, rank: int, size: int) -> Tensor:
    """The positions `[L]` of one of `size` ranks; `length` is a multiple of `2 * size` beyond one."""
    if size == 1:
        return torch.arange(length)
    chunks = torch.arange(length).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def places_in(positions_L: Tensor, length: int) -> Tensor:
    """Where each position `[S]` lies among those of a rank; -1 = on another one."""
    places_S = torch.full((length,), -1, device=positions_L.device)
    places_S[positions_L] = torch.arange(len(positions_L), device=positions_L.device)
    return places_S


def causal_mask(length: int, rank: int, size: int) -> Tensor:
    """`[L, S]`, True where a rank's query attends to a key of all ranks' keys, one rank's after another's."""
    keys_S = torch.cat([positions_of(length, other, size) for other in range(size)])
    return positions_of(length, rank, size)[:, None] >= keys_S[None]
