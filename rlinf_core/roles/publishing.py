"""Workers whose weights others act with."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.on_device import Group, GroupBucket, Handles
from rlinf_core.comm.patches import DeltaBucket, Differ
from rlinf_core.comm.transport import Standpoint, Transport
from rlinf_core.comm.weights import SharedBucket, WeightBoard, WeightReader
from rlinf_core.roles.weights import Published, Receiver
from rlinf_core.worker import Worker, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Trainer


class Publisher(Worker):
    """A worker whose weights others act with."""

    trainer: Trainer
    checks = False  # checksums go along on one machine too
    on_device = True  # weights may go from accelerator to accelerator
    _handles: Handles | None = None  # keeps what receivers look at
    _group: Group | None = None

    @cached_property
    def board(self) -> WeightBoard:
        """Where versions lie for receivers of this machine."""
        return WeightBoard()

    @cached_property
    def writer(self) -> WeightReader:
        """Of what this rank holds, into that."""
        return WeightReader()

    @cached_property
    def differ(self) -> Differ:
        """What receivers of other machines have."""
        return Differ()

    @stage
    def publish(
        self,
        chunks: Iterator[list[Any]],
        *,
        local: dict[int, str],
        remote: bool,
        trainable_only: bool,
        way: Transport | None = None,
        in_use: Sequence[int] = (),
        live: bool = False,
        dtype: str = "",
        checked: bool = False,
        readers: Sequence[str] = (),
    ) -> Generator[list[Any], None, Published]:
        """Give the current weights to the receiver in this process (`local`: by rank, its name) and, on
        rank 0 with `remote`, to the driver. All ranks take part.

        What goes to the driver is fit for one way, floats as `dtype`: with shared memory it only tells where
        the weights lie, which is not where versions `in_use` do, and with `live` is where the parameters
        themselves are. Handles are for `readers`. Without a way it is the buckets themselves. `checked`: with
        checksums.
        """
        yields = remote and self.context.rank == 0
        kept: list[Any] = []

        checked = checked or self.checks

        def pass_on(buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
            for bucket in buckets:
                if yields:
                    kept.append(bucket if outlet is None else outlet.write(bucket, dtype, checked=checked))
                yield bucket

        outlet = None
        if yields:
            outlet = self._outlet(way, in_use, readers, whole=not trainable_only, live=live)
        buckets = pass_on(self.trainer.weights(trainable_only=trainable_only))
        name = local.get(self.context.rank)
        if name is not None:
            with self.beside(name):
                cast("Receiver", self.context.peers[name]).load_weights(buckets)
        else:
            for _ in buckets:
                if kept:
                    yield [kept.pop()]
        while kept:
            yield [kept.pop(0)]
        if isinstance(outlet, WeightBoard):
            outlet.end()
        return Published(self.trainer.version, None if outlet is None else outlet.changes)

    @stage
    def broadcast(
        self, chunks: Iterator[list[Any]], *, trainable_only: bool, dtype: str, checked: bool
    ) -> Generator[list[GroupBucket], None, Published]:
        """Send the current weights to the process group that `open_group` has made, and tell the driver what
        comes. All ranks take part in gathering."""
        for bucket in self.trainer.weights(trainable_only=trainable_only):
            if self.context.rank == 0 and self._group is not None:
                told, joined = self._group.told(bucket, dtype, checked=checked or self.checks)
                yield [told]
                self._group.send(joined)
        return Published(self.trainer.version)

    def open_group(self, receivers: int, *, near: bool) -> tuple[str, int]:
        """A new process group, with so many receivers; returns where they find it. `near`: they are all of
        this machine."""
        if self._group is not None:
            self._group.close()
        address = "127.0.0.1" if near else self.context.reach
        self._group, port = Group.opened(address, 1 + receivers)
        return address, port

    def lay_out(
        self, *, trainable_only: bool, in_use: Sequence[int], dtype: str
    ) -> list[SharedBucket] | None:
        """Make room for the current weights, on rank 0; None where a rank does not hold parts of them, or one
        of them is to tell checksums of the whole."""
        import torch

        parts = None if self.checks else self.trainer.parts(trainable_only=trainable_only)
        if parts is None:
            return None
        version, buckets = self.trainer.version, list(parts)
        self.board.begin(version, in_use, whole=not trainable_only)
        room = []
        for number, bucket in enumerate(buckets, 1):
            shapes = {
                name: torch.empty(part.shape, dtype=part.held.dtype, device="meta")
                for name, part in bucket.items()
            }
            last = number == len(buckets)
            room.append(self.board.reserve(WeightBucket(version, shapes, last), dtype))
        return room

    @stage
    def fill(
        self, chunks: Iterator[list[SharedBucket]], *, trainable_only: bool
    ) -> Generator[list[int], None, None]:
        """Write what this rank holds of each bucket; tells the numbers of those that are written."""
        parts = self.trainer.parts(trainable_only=trainable_only)
        rooms = (room for chunk in chunks for room in chunk)
        for number, (room, held) in enumerate(zip(rooms, parts or (), strict=True)):
            self.writer.fill(room, held)
            yield [number]

    def filled(self) -> Published:
        """All ranks have written, on rank 0."""
        self.board.look()
        self.board.end()
        return Published(self.trainer.version, self.board.changes)

    @stage
    def publish_again(self, chunks: Iterator[list[Any]]) -> Generator[list[DeltaBucket], None, Published]:
        """All that receivers of other machines have, for one that has nothing; on rank 0 alone."""
        for bucket in self.differ.again():
            yield [bucket]
        return Published(self.trainer.version)

    def _outlet(
        self, way: Transport | None, in_use: Sequence[int], readers: Sequence[str], *, whole: bool, live: bool
    ) -> WeightBoard | Differ | Handles | None:
        if way is Transport.CUDA_IPC:
            self._handles = Handles(readers)
            return self._handles
        if way is Transport.SHARED_MEMORY:
            self.board.begin(self.trainer.version, in_use, whole=whole, live=live)
            return self.board
        if way is Transport.SOCKET:
            self.differ.begin(self.trainer.version, whole=whole)
            return self.differ
        return None

    @on_host
    def version(self) -> int:
        """Optimizer steps taken."""
        return self.trainer.version

    @on_host
    def standpoint(self) -> Standpoint:
        """Where it sits."""
        device = self.context.device if self.on_device else "cpu"
        return Standpoint.here(device, self.context.reach)

    def close(self) -> None:
        """What receivers read stays theirs."""
        try:
            super().close()
        finally:
            self.board.close()
            if self._group is not None:
                self._group.close()
