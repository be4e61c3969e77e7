"""The ranks that train together: process group, device mesh and sums over ranks."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlinf_core.api import TrainerContext
from rlinf_core.errors import ConfigError

TIMEOUT = timedelta(minutes=30)
LOOK_S = 0.002


@dataclass
class World:
    """This rank among the others. `mesh` is None in a world of one, which has no process group."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None
    owner: bool = False  # opened the process group, and so closes it

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def close(self) -> None:
        """Leave the process group."""
        if self.owner and dist.is_initialized():
            dist.destroy_process_group()
        self.owner = False


def join_world(context: TrainerContext) -> World:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT. Raises `ConfigError` for a device that is not here."""
    device = torch.device(context.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"backend fsdp: device {context.device!r} was asked for, but CUDA is not available"
            )
        if device.index is None:
            device = torch.device("cuda", context.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if context.world_size == 1:
        return World(0, 1, device)
    owner = not dist.is_initialized()
    if owner:
        _open_group(context, device)
    if dist.get_world_size() != context.world_size:
        raise ConfigError(
            f"backend fsdp: a trainer of {context.world_size} ranks was asked for, but this process belongs "
            f"to a process group of {dist.get_world_size()}"
        )
    name = f"data{context.rank}"  # torch keeps what it found for equal meshes, also of another rank
    mesh = init_device_mesh(device.type, (context.world_size,), mesh_dim_names=(name,))
    return World(context.rank, context.world_size, device, mesh, owner)


def _open_group(context: TrainerContext, device: torch.device) -> None:
    if context.rank:
        _await_first(os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", ""))
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method="env://",
            rank=context.rank,
            world_size=context.world_size,
            timeout=TIMEOUT,
        )
    except ValueError as err:
        raise ConfigError(
            f"backend fsdp: {context.world_size} ranks meet at MASTER_ADDR and MASTER_PORT, "
            f"which are not set ({err})"
        ) from err


def _await_first(address: str, port: str) -> None:
    """Until rank 0 is there: who comes before it would look again after half a second, and later."""
    end = time.monotonic() + TIMEOUT.total_seconds()
    while address and port and time.monotonic() < end:
        try:
            with socket.create_connection((address, int(port)), timeout=1.0):
                return
        except OSError:
            time.sleep(LOOK_S)
