"""Weights on their way from the actor: who sends and receives them, and one update of all receivers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.comm.patches import DeltaBucket, Differ, Patched
from rlinf_core.comm.stream import Stream
from rlinf_core.comm.transport import Standpoint, Transport, choose
from rlinf_core.comm.weights import Changes, SharedBucket, WeightBoard, WeightReader
from rlinf_core.errors import ModelError
from rlinf_core.worker import Worker, WorkerGroup, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Trainer, WeightBucket


@dataclass(frozen=True)
class Published:
    """What a rank says of a version that it has sent."""

    version: int
    changes: Changes | None = None  # where it went to another process


class Publisher(Worker):
    """A worker whose weights others act with."""

    trainer: Trainer

    @cached_property
    def board(self) -> WeightBoard:
        """Where versions lie for receivers of this machine."""
        return WeightBoard()

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
    ) -> Generator[list[Any], None, Published]:
        """Give the current weights to the receiver in this process (`local`: by rank, its name) and, on
        rank 0 with `remote`, to the driver. All ranks take part.

        What goes to the driver is fit for one way, floats as `dtype`: with shared memory it only tells where
        the weights lie, which is not where versions `in_use` do, and with `live` is where the parameters
        themselves are. Without a way it is the buckets themselves.
        """
        yields = remote and self.context.rank == 0
        kept: list[Any] = []

        def pass_on(buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
            for bucket in buckets:
                if yields:
                    kept.append(bucket if outlet is None else outlet.write(bucket, dtype))
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

    @abstractmethod
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version, completely; returns it."""

    def weight_dtype(self) -> str:
        """What it keeps floats as, such as "bfloat16"; "" = as the trainer does."""
        return ""

    @on_host
    def standpoint(self) -> tuple[Standpoint, str]:
        """Where it sits, and what floats should come as."""
        return Standpoint.here(self.context.device), self.weight_dtype()

    @stage
    def receive(self, chunks: Iterator[list[SharedBucket | DeltaBucket]]) -> Generator[list[Any], None, int]:
        """As `load_weights`, from another process."""
        version = self.load_weights(self._opened(chunks))
        yield from ()
        return version

    def _opened(self, chunks: Iterator[list[SharedBucket | DeltaBucket]]) -> Iterator[WeightBucket]:
        """Every bucket of a version as it comes. Raises `ModelError` where two versions meet."""
        version: int | None = None
        for chunk in chunks:
            for bucket in chunk:
                if version not in (None, bucket.version):
                    raise ModelError(
                        f"{self.context.name} was sent weights of version {bucket.version} among those of "
                        f"version {version}; nothing was installed"
                    )
                version = bucket.version
                if isinstance(bucket, SharedBucket):
                    yield self.reader.open(bucket)
                else:
                    yield self.patched.open(bucket)


@dataclass(frozen=True)
class Weights:
    """One version as the actor has sent it, for receivers in other processes."""

    version: int
    buckets: Mapping[Transport, Sequence[SharedBucket | DeltaBucket]] = field(default_factory=dict)  # by way


class WeightSync:
    """Brings the receivers to the actor's version. Where both sit in one process nothing is copied
    on the way. On one machine receivers read the parameters where they are; weights that are taken now and
    given later are written into memory of their own. To other machines goes what has changed."""

    def __init__(self, actor: WorkerGroup, receivers: WorkerGroup) -> None:
        self.actor = actor
        self.version = -1
        self.metrics: dict[str, float] = {}  # of the last update that went to other processes
        self._receivers = receivers
        neighbours = {id(host): name for host, name in receivers.members}
        self._local = {
            rank: neighbours[id(host)]
            for rank, (host, _) in enumerate(actor.members)
            if id(host) in neighbours
        }
        near = {id(actor.members[rank][0]) for rank in self._local}
        self._others = [member for member in receivers.members if id(member[0]) not in near]
        self._dtype = ""  # of floats in other processes
        self._live = True  # receivers do nothing while weights change
        self._shown = False  # they see the parameters themselves
        self._held: list[int] = []  # versions that receivers have, or will be given
        self._holding = threading.Lock()

    def __call__(self) -> None:
        """One complete update, where there is something new. The first brings all weights, later ones
        what is trained."""
        version = self.newest()
        if version == self.version:
            return
        local = self._local
        for group, transport in self._ways:
            sent = self._publish(local, transport)
            group.stage("receive", sent, route="broadcast").collect()
            self._note(sent)
            local = {}
        self._shown = self._live
        if not self._ways:
            self._publish(local, None).collect()
        self.version = version
        self._installed(version)

    def take(self) -> Weights:
        """The actor's weights as they are now, for receivers in other processes that still act with older
        ones. What is taken is given, in that order."""
        self._live = False
        version = self.newest()
        if version == self.version and not self._shown:
            return Weights(version)
        self._shown = False
        taken = {}
        for _, transport in self._ways:
            sent = self._publish({}, transport)
            taken[transport] = sent.collect()
            self._note(sent)
        self.version = version
        with self._holding:
            self._held.append(version)
        return Weights(version, taken)

    def give(self, weights: Weights) -> None:
        """Install what was taken; callable from another thread than `take`."""
        for group, transport in self._ways:
            buckets = weights.buckets.get(transport)
            if buckets:
                chunks = Stream.of([bucket] for bucket in buckets)
                group.stage("receive", chunks, route="broadcast").collect()
        self._installed(weights.version)

    def newest(self) -> int:
        """The actor's version."""
        version: int = self.actor.call_rank(0, "version").result()
        return version

    @cached_property
    def _ways(self) -> list[tuple[WorkerGroup, Transport]]:
        """Receivers in other processes, by how they are reached."""
        if not self._others:
            return []
        sender: Standpoint = self.actor.call_rank(0, "standpoint").result()
        others = WorkerGroup(self._receivers.name, self._others)
        found: dict[Transport, list[Any]] = {}
        for member, (standpoint, dtype) in zip(self._others, others.call("standpoint").wait(), strict=True):
            self._dtype = dtype
            found.setdefault(choose(sender, standpoint), []).append(member)
        return [(WorkerGroup(self._receivers.name, each), way) for way, each in found.items()]

    def _note(self, sent: Stream) -> None:
        published: Published = sent.result[0]
        if published.changes is not None:
            self.metrics["sync/mb"] = published.changes.sent_bytes / 2**20
            if published.changes.share is not None:
                self.metrics["sync/changed_share"] = published.changes.share

    def _installed(self, version: int) -> None:
        """Receivers have this version now, and will not go back."""
        with self._holding:
            self._held = [version, *(each for each in self._held if each > version)]

    def _publish(self, local: dict[int, str], transport: Transport | None) -> Stream:
        return self.actor.stage(
            "publish",
            Stream.of([]),
            local=local,
            remote=transport is not None,
            trainable_only=self.version >= 0,
            way=transport,
            in_use=sorted(self._held),
            live=self._live,
            dtype=self._dtype,
        )
