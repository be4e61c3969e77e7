"""Workers that act with the actor's weights, and what passes on the way to them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.on_device import Group, GroupBucket, HandleBucket, open_handles
from rlinf_core.comm.onward import Links
from rlinf_core.comm.patches import DeltaBucket, Patched
from rlinf_core.comm.transport import Standpoint
from rlinf_core.comm.weights import Changes, SharedBucket, WeightBoard, WeightReader
from rlinf_core.errors import ModelError
from rlinf_core.worker import Worker, on_host, stage

if TYPE_CHECKING:
    pass

Sent = SharedBucket | DeltaBucket | HandleBucket | GroupBucket


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


class Receiver(Worker, ABC):
    """A worker that acts with the actor's weights."""

    checks = False  # checksums go along with what it shows to others
    _group: Group | None = None

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

    def weight_device(self) -> str:
        """Where it can take weights from; "cpu" of an engine whose own process has the device."""
        return self.context.device

    @on_host
    def join_group(self, address: str, port: int, rank: int, size: int) -> None:
        """Be a receiver of a process group, from its next broadcast on."""
        if self._group is not None:
            self._group.close()
        self._group = Group(address, port, rank, size)

    @on_host
    def standpoint(self) -> tuple[Standpoint, str]:
        """Where it sits, and what floats should come as."""
        return Standpoint.here(self.weight_device(), self.context.reach), self.weight_dtype()

    @stage
    def receive(
        self,
        chunks: Iterator[list[Sent]],
        *,
        relays: frozenset[str] = frozenset(),
        linked: bool = False,
    ) -> Generator[list[Shown], None, int]:
        """As `load_weights`, from another process. Changes of a version that is here already are passed over.
        One of the `relays` shows what it got to others of its machine. `linked`: what comes is passed on to
        the next machine, and comes from the one before, where there is one."""
        if not linked:
            return (yield from self._received(chunks, relays))
        with closing(self.links.passing(chunks)) as passing:
            return (yield from self._received(passing, relays))

    def _received(
        self, chunks: Iterator[list[Sent]], relays: frozenset[str]
    ) -> Generator[list[Shown], None, int]:
        sent = self._of_one_version(chunks)
        first = next(sent, None)
        if first is None or (isinstance(first, DeltaBucket) and self.patched.has(first)):
            for _ in sent:
                continue
            return self.patched.version
        shown: list[Shown] = []
        opened: Iterator[WeightBucket] = map(self._opened, itertools.chain([first], sent))
        if self.context.name in relays:
            whole = isinstance(first, DeltaBucket) and first.base < 0
            opened = self._showing(opened, shown, whole=whole)
        version = self.load_weights(opened)
        yield from ([each] for each in shown)
        return version

    def take_on(self, *, relays: frozenset[str]) -> list[Shown]:
        """As `receive`, from the machine before."""
        chunks = self.receive(iter(()), relays=relays, linked=True)
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
        if isinstance(bucket, SharedBucket):
            return self.reader.open(bucket)
        if isinstance(bucket, HandleBucket):
            return open_handles(bucket, self.context.name)
        if isinstance(bucket, GroupBucket):
            if self._group is None:
                raise ModelError(f"{self.context.name} was sent a broadcast before it had joined its group")
            return self._group.receive(bucket, self.context.device)
        return self.patched.open(bucket)

    def _showing(
        self, buckets: Iterable[WeightBucket], shown: list[Shown], *, whole: bool
    ) -> Iterator[WeightBucket]:
        """The buckets, and where each lies then. Those who look at it do nothing while it changes."""
        for number, bucket in enumerate(buckets):
            if not number:
                self.board.begin(bucket.version, (), whole=whole, live=True)
            shown.append(Shown(self.context.name, self.board.write(bucket, checked=self.checks)))
            yield bucket
        self.board.end()
