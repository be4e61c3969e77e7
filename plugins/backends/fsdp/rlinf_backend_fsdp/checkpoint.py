"""Checkpoints: which shards a rank writes, and which it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from rlinf_backend_fsdp.world import World
from rlinf_core.shards import Shard


def parts(state: Mapping[str, Tensor], own: Mapping[str, Tensor], world: World) -> list[Shard]:
    """What this rank writes of a state that all ranks have, and of what it has alone. Whole tensors are dealt
    to the ranks, each to the one with the least so far."""
    loads = [0] * world.size
    found = list(targets(own))
    for shard in targets(state):
        if shard.shape == tuple(shard.data.shape) and not isinstance(state[shard.name], DTensor):
            rank = loads.index(min(loads))
            loads[rank] += shard.data.nbytes
            if rank != world.rank:
                continue
        if shard.data.numel():
            found.append(shard)
    return sorted(found, key=lambda shard: shard.key)


def targets(state: Mapping[str, Tensor]) -> Iterator[Shard]:
    """This rank's part of every tensor."""
    for name, tensor in state.items():
        if isinstance(tensor, DTensor):
            local: Any = tensor.to_local()  # Any: as torch types it
            chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
            offsets = tuple(chunks[0].offsets) if chunks else (0,) * tensor.ndim
            yield Shard(name, local, offsets, tuple(tensor.shape))
        else:
            yield Shard(name, tensor.detach(), (0,) * tensor.ndim, tuple(tensor.shape))
