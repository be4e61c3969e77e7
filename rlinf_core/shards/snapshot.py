"""One rank's shards at one moment, copied beside training and written as a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlinf_core.api import Snapshot
from rlinf_core.errors import CheckpointError
from rlinf_core.shards.files import NAME, Shard, as_bytes, header, memory

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
        stream = None if device is None else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
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
            raise CheckpointError(f"cannot copy the state ({self._error})") from self._error
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

    def __init__(self, shards: Sequence[Shard], rank: int, ranks: int, stage: Stage | None) -> None:
        self.shards = shards
        self.rank, self.ranks = rank, ranks
        self.size = sum(shard.data.nbytes for shard in shards)
        self._stage = stage
        if stage is not None:
            stage.copy(shards)

    def write(self, path: Path) -> list[Path]:
        """One file. Raises `OSError`."""
        file = path / NAME.format(self.rank + 1, self.ranks)
        with file.open("wb") as handle:
            handle.write(header(self.shards, self.ranks))
            for part in self._bytes():
                for block in part.split(BLOCK):  # type: ignore[no-untyped-call]
                    handle.write(memory(block))
        return [file]

    def _bytes(self) -> Iterator[Tensor]:
        if self._stage is not None:
            yield self._stage.copied(self.shards)
        else:
            for shard in self.shards:
                yield as_bytes(shard.data).cpu()
