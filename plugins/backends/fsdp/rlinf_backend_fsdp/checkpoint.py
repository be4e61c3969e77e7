"""Checkpoints: each rank writes its shards into a file of its own, and any number of ranks reads them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlinf_backend_fsdp.shards import NAME, Reader, Shard, as_bytes, header, memory
from rlinf_backend_fsdp.world import World
from rlinf_core.api import Snapshot
from rlinf_core.errors import CheckpointError

FORMER = "*.distcp"  # files of checkpoints from before
BLOCK = 64 << 20  # bytes written at once


class Stage:
    """Host memory that states are copied to, kept for the next one, and the copy that is under way."""

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)
        self._copying: threading.Thread | None = None
        self._error: BaseException | None = None

    def copy(self, shards: Sequence[Shard]) -> None:
        """Begin to copy; whoever changes the tensors settles first."""
        self.settle()
        size = sum(shard.data.nbytes for shard in shards)
        device = next((shard.data.device for shard in shards if shard.data.is_cuda), None)
        if self._room.numel() < size:
            self._room = torch.empty(size, dtype=torch.uint8, pin_memory=device is not None)
        stream = None if device is None else torch.cuda.Stream(device)
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(device))
        self._error = None
        self._copying = threading.Thread(
            target=self._run, args=(shards, stream), name="checkpoint-copy", daemon=True
        )
        self._copying.start()

    def settle(self) -> None:
        """Wait until the copy is complete."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def copied(self, shards: Sequence[Shard]) -> Tensor:
        """The bytes of the shards one after the other, once they are there."""
        copying = self._copying
        if copying is not None:
            copying.join()
        if self._error is not None:
            raise CheckpointError(f"backend fsdp: cannot copy the state ({self._error})") from self._error
        return self._room[: sum(shard.data.nbytes for shard in shards)]

    def _run(self, shards: Sequence[Shard], stream: torch.cuda.Stream | None) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                start = 0
                for shard in shards:
                    end = start + shard.data.nbytes
                    self._room[start:end].copy_(as_bytes(shard.data), non_blocking=True)
                    start = end
            if stream is not None:
                stream.synchronize()
        except BaseException as err:  # the border of a thread: `copied` raises it
            self._error = err


class ShardSnapshot(Snapshot):
    """The shards of one rank, in a `stage` of their own or where they are."""

    def __init__(self, shards: Sequence[Shard], world: World, stage: Stage | None) -> None:
        self.shards = shards
        self.world = world
        self.size = sum(shard.data.nbytes for shard in shards)
        self._stage = stage
        if stage is not None:
            stage.copy(shards)

    def write(self, path: Path) -> list[Path]:
        """One file. Raises `OSError`."""
        file = path / NAME.format(self.world.rank + 1, self.world.size)
        with file.open("wb") as handle:
            handle.write(header(self.shards, self.world.size))
            for part in self._bytes():
                for block in part.split(BLOCK):
                    handle.write(memory(block))
        return [file]

    def _bytes(self) -> Iterator[Tensor]:
        if self._stage is not None:
            yield self._stage.copied(self.shards)
        else:
            for shard in self.shards:
                yield as_bytes(shard.data).cpu()


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


def keys(path: Path) -> set[str]:
    """The names in a checkpoint. Raises `CheckpointError`."""
    with _opened(path) as reader:
        return set(reader.shapes)


def read(state: Mapping[str, Tensor], path: Path) -> None:
    """Fill the tensors in place; every rank reads what it needs. Raises `CheckpointError`."""
    with _opened(path) as reader:
        missing = sorted(set(state) - set(reader.shapes))
        if missing:
            raise CheckpointError(
                f"backend fsdp: the checkpoint {path} lacks {len(missing)} tensors, such as {missing[0]!r}; "
                "it was made with another model or other lora settings"
            )
        try:
            for shard in targets(state):
                reader.read(shard)
        except (SafetensorError, OSError, RuntimeError) as err:
            raise CheckpointError(f"backend fsdp: cannot load the checkpoint {path}: {err}") from err


def _opened(path: Path) -> Reader:
    if not any(path.glob("shard-*")):
        if any(path.glob(FORMER)):
            raise CheckpointError(
                f"backend fsdp: {path} was written by an earlier version, in a format that can run code when "
                "it is read; resume the run with that version, or start a new one from its export"
            )
        raise CheckpointError(f"backend fsdp: no readable checkpoint in {path} (no shards); name another one")
    return Reader(path)
