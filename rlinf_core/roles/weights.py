"""Workers between which weights pass: those who have trained them, and those who act with them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.onward import Links
from rlinf_core.comm.patches import DeltaBucket, Differ, Patched
from rlinf_core.comm.transport import Standpoint, Transport
from rlinf_core.comm.weights import Changes, SharedBucket, WeightBoard, WeightReader
from rlinf_core.errors import ModelError
from rlinf_core.worker import Worker, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Trainer

Sent = SharedBucket | DeltaBucket


@dataclass(frozen=True)
class Published:
    """What a rank says of a version that it has sent."""

    version: int
    changes: Changes | None = None  # where it went to another process


@dataclass(frozen=True)
class Shown:
    """A bucket that a receiver shows to others of its machine."""

    by: str
    bucket: SharedBucket


class Publisher(Worker):
    """A worker whose weights others act with."""

    trainer: Trainer

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
    ) -> Generator[list[Any], None, Published]:
        """Give the current weights to the receiver in this process (`local`: by rank, its name) and, on
        rank 0 with `remote`, to the driver. All ranks take part.

        What goes to the driver is fit for one way, floats as `dtype`: with shared memory it only tells where
        the weights lie, which is not where versions `in_use` do, and with `live` is where the parameters
        themselves are. Without a way it is the buckets themselves. `checked`: with checksums.
        """
        yields = remote and self.context.rank == 0
        kept: list[Any] = []

        def pass_on(buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
            for bucket in buckets:
                if yields:
                    kept.append(bucket if outlet is None else outlet.write(bucket, dtype, checked=checked))
                yield bucket

        outlet = self._outlet(way, in_use, whole=not trainable_only, live=live) if yields else None
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

    def lay_out(
        self, *, trainable_only: bool, in_use: Sequence[int], dtype: str
    ) -> list[SharedBucket] | None:
        """Make room for the current weights, on rank 0; None where a rank does not hold parts of them."""
        import torch

        parts = self.trainer.parts(trainable_only=trainable_only)
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
        self, way: Transport | None, in_use: Sequence[int], *, whole: bool, live: bool
    ) -> WeightBoard | Differ | None:
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
        return Standpoint.here(self.context.device)

    def close(self) -> None:
        """What receivers read stays theirs."""
        try:
            super().close()
        finally:
            self.board.close()


class Receiver(Worker, ABC):
    """A worker that acts with the actor's weights."""

    @cached_property
    def reader(self) -> WeightReader:
        """Of weights that lie in this machine's memory."""
        return WeightReader()

    @cached_property
    def patched(self) -> Patched:
        """What another machine has sent."""
        return Patched()

    @cached_property
    def board(self) -> WeightBoard:
        """Where that lies for other receivers of this machine."""
        return WeightBoard()

    @cached_property
    def links(self) -> Links:
        """To other machines that are sent the same."""
        return Links(self.context.name)

    @abstractmethod
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version, completely; returns it."""

    def weight_dtype(self) -> str:
        """What it keeps floats as, such as "bfloat16"; "" = as the trainer does."""
        return ""

    @on_host
    def standpoint(self) -> tuple[Standpoint, str]:
        """Where it sits, and what floats should come as."""
        return Standpoint.here(self.context.device, self.context.reach), self.weight_dtype()

    @stage
    def receive(
        self,
        chunks: Iterator[list[Sent]],
        *,
        relays: frozenset[str] = frozenset(),
        checked: bool = False,
        linked: bool = False,
    ) -> Generator[list[Shown], None, int]:
        """As `load_weights`, from another process. Changes of a version that is here already are passed over.
        One of the `relays` shows what it got to others of its machine, `checked` with checksums. `linked`:
        what comes is passed on to the next machine, and comes from the one before, where there is one."""
        sent = self._of_one_version(self.links.passing(chunks) if linked else chunks)
        first = next(sent, None)
        if first is None or (isinstance(first, DeltaBucket) and self.patched.has(first)):
            for _ in sent:
                continue
            return self.patched.version
        shown: list[Shown] = []
        opened: Iterator[WeightBucket] = map(self._opened, itertools.chain([first], sent))
        if self.context.name in relays:
            whole = isinstance(first, DeltaBucket) and first.base < 0
            opened = self._showing(opened, shown, whole=whole, checked=checked)
        version = self.load_weights(opened)
        yield from ([each] for each in shown)
        return version

    def take_on(self, *, relays: frozenset[str], checked: bool) -> list[Shown]:
        """As `receive`, from the machine before."""
        chunks = self.receive(iter(()), relays=relays, checked=checked, linked=True)
        return [each for chunk in chunks for each in chunk]

    @on_host
    def listen(self) -> tuple[str, str]:
        """Wait for the machine before; returns what `dial` needs there."""
        return self.links.listen(self.context.reach)

    @on_host
    def dial(self, place: str, token: str) -> None:
        """Be connected to the machine after."""
        self.links.dial(place, token)

    @on_host
    def unlink(self) -> None:
        """Stand alone."""
        self.links.close()

    @stage
    def show(self, chunks: Iterator[list[Any]]) -> Generator[list[SharedBucket], None, None]:
        """All that another machine has sent, to others of this one."""
        shown: list[Shown] = []
        for _ in self._showing(self.patched.all(), shown, whole=True):
            continue
        yield [each.bucket for each in shown]

    def _of_one_version(self, chunks: Iterator[list[Sent]]) -> Iterator[Sent]:
        """As they come. Raises `ModelError` where two versions meet."""
        version: int | None = None
        for chunk in chunks:
            for bucket in chunk:
                if version not in (None, bucket.version):
                    raise ModelError(
                        f"{self.context.name} was sent weights of version {bucket.version} among those of "
                        f"version {version}; nothing was installed"
                    )
                version = bucket.version
                yield bucket

    def _opened(self, bucket: Sent) -> WeightBucket:
        return self.reader.open(bucket) if isinstance(bucket, SharedBucket) else self.patched.open(bucket)

    def _showing(
        self, buckets: Iterable[WeightBucket], shown: list[Shown], *, whole: bool, checked: bool = False
    ) -> Iterator[WeightBucket]:
        """The buckets, and where each lies then. Those who look at it do nothing while it changes."""
        for number, bucket in enumerate(buckets):
            if not number:
                self.board.begin(bucket.version, (), whole=whole, live=True)
            shown.append(Shown(self.context.name, self.board.write(bucket, checked=checked)))
            yield bucket
        self.board.end()
