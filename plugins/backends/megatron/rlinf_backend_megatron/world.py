"""The ranks that train together: process groups of every kind of parallelism, and sums over data parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor

from rlinf_backend_megatron.layout import Layout
from rlinf_core.api import DataShare, TrainerContext
from rlinf_core.errors import ConfigError

TIMEOUT = timedelta(minutes=30)


@dataclass
class World:
    """This rank among the others."""

    rank: int
    size: int
    device: torch.device
    layout: Layout
    owner: bool  # opened the process groups, and so closes them
    groups: Any = None  # those of this process at that time. Any: torch's process groups are not typed

    @property
    def stage(self) -> int:
        """Of the pipeline."""
        return int(parallel_state.get_pipeline_model_parallel_rank())

    @property
    def is_last_stage(self) -> bool:
        """Whether log-probabilities and the loss are computed here."""
        return self.stage == self.layout.pipeline - 1

    @property
    def tensor_rank(self) -> int:
        """Among those that share matrices."""
        return int(parallel_state.get_tensor_model_parallel_rank())

    @property
    def expert_rank(self) -> int:
        """Among those that share experts."""
        return int(parallel_state.get_expert_model_parallel_rank())

    @property
    def context_rank(self) -> int:
        """Among those that share the positions of a row."""
        return int(parallel_state.get_context_parallel_rank())

    @property
    def context_group(self) -> Any:  # Any: torch's process groups are not typed
        """Ranks that share the positions of a row."""
        return parallel_state.get_context_parallel_group()

    @property
    def tensor_group(self) -> Any:  # Any: torch's process groups are not typed
        """Ranks that share matrices."""
        return parallel_state.get_tensor_model_parallel_group()

    @property
    def share(self) -> DataShare:
        """Ranks of one model work on the same rows; the first of the last stage speaks for them."""
        return DataShare(
            index=int(parallel_state.get_data_parallel_rank()),
            count=self.layout.data,
            speaks=self.is_last_stage and self.tensor_rank == 0 and self.context_rank == 0,
        )

    def sum_over_data_(self, tensor: Tensor) -> Tensor:
        """Sum over the ranks that have other rows, in place."""
        if self.layout.data > 1:
            dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
        return tensor

    def from_stage(self, tensor: Tensor, stage: int) -> Tensor:
        """What a stage of this pipeline holds, written into the others' tensor."""
        if self.layout.pipeline > 1:
            group = parallel_state.get_pipeline_model_parallel_group()
            dist.broadcast(tensor, src=dist.get_global_rank(group, stage), group=group)
        return tensor

    def gather_tensor_parallel(self, shard: Tensor) -> list[Tensor]:
        """Every tensor-parallel rank's shard, which are equally large."""
        return _gather(shard, self.layout.tensor, self.tensor_group)

    def gather_experts(self, local: Tensor) -> list[Tensor]:
        """Every expert-parallel rank's experts."""
        if self.layout.expert == 1:
            return [local]
        return _gather(local, self.layout.expert, parallel_state.get_expert_model_parallel_group())

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def leave(self) -> None:
        """Leave the process groups for others, unless another trainer of this process has done so already."""
        if dist.is_initialized() and dist.group.WORLD is self.groups:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        self.owner = False

    def close(self) -> None:
        """Leave the process groups."""
        if self.owner and dist.is_initialized():
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        self.owner = False


def join_world(context: TrainerContext, layout: Layout) -> World:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT. Raises `ConfigError`."""
    device = torch.device(context.device)
    if device.type == "cuda":
        if device.index is None:
            device = torch.device("cuda", context.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    owner = not parallel_state.model_parallel_is_initialized()
    if not dist.is_initialized():
        _open_group(context, device)
    if dist.get_world_size() != context.world_size:
        raise ConfigError(
            f"backend megatron: a trainer of {context.world_size} ranks was asked for, but this process "
            f"belongs to a process group of {dist.get_world_size()}"
        )
    if owner:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.tensor if layout.expert == 1 else 1,
            create_gloo_process_groups=False,
        )
        model_parallel_cuda_manual_seed(context.seed)
    elif _sizes() != (layout.tensor, layout.pipeline, layout.context, layout.expert):
        raise ConfigError(
            f"backend megatron: another trainer of this process has sizes {_sizes()} (tensor, pipeline, "
            "context, expert); all trainers of a process have the same"
        )
    return World(context.rank, context.world_size, device, layout, owner, dist.group.WORLD)


def _sizes() -> tuple[int, ...]:
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_context_parallel_world_size(),
        parallel_state.get_expert_model_parallel_world_size(),
    )


def _gather(tensor: Tensor, size: int, group: Any) -> list[Tensor]:
    if size == 1:
        return [tensor]
    found: Sequence[Tensor] = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(list(found), tensor.contiguous(), group=group)
    return list(found)


def _open_group(context: TrainerContext, device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    if context.world_size == 1:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return
    meeting = _meeting_place(
        os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"), context.rank, context.world_size
    )
    number = meeting.add(f"trainers of rank {context.rank}", 1)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"trainer {number}", meeting),  # type: ignore[attr-defined]
        rank=context.rank,
        world_size=context.world_size,
        timeout=TIMEOUT,
    )


@lru_cache(maxsize=2)
def _meeting_place(_address: str | None, _port: str | None, rank: int, size: int) -> Any:
    """One for all trainers that this process has at an address, one after the other: a door that is opened
    anew for each could let a rank in that is ahead before the last one has left. Ranks whose number changes
    meet at a new address; the door before the last one is closed."""
    try:
        store, _, _ = next(
            dist.rendezvous("env://", rank, size, timeout=TIMEOUT)  # type: ignore[attr-defined]
        )
    except ValueError as err:
        raise ConfigError(
            f"backend megatron: {size} ranks meet at MASTER_ADDR and MASTER_PORT, which are not set ({err})"
        ) from err
    return store
