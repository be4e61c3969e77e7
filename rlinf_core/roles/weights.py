"""Weights on their way from the actor: who receives them, and one update of all receivers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf_core.comm.stream import Stream
from rlinf_core.worker import Worker, WorkerGroup, stage

if TYPE_CHECKING:
    from rlinf_core.api import WeightBucket


class Receiver(Worker, ABC):
    """A worker that acts with the actor's weights."""

    @abstractmethod
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version, completely; returns it."""

    @stage
    def receive(self, chunks: Iterator[list[WeightBucket]]) -> Generator[list[WeightBucket], None, int]:
        """As `load_weights`, from another process."""
        version = self.load_weights(bucket for chunk in chunks for bucket in chunk)
        yield from ()
        return version


@dataclass(frozen=True)
class Weights:
    """One version as the actor has sent it, for receivers in other processes."""

    version: int
    buckets: Sequence[WeightBucket] = ()  # () = there is nothing new


class WeightSync:
    """Brings the receivers to the actor's version. Where both sit in one process nothing is copied
    on the way; to other processes the weights go in buckets."""

    def __init__(self, actor: WorkerGroup, receivers: WorkerGroup) -> None:
        self.actor = actor
        self.version = -1
        neighbours = {id(host): name for host, name in receivers.members}
        self._local = {
            rank: neighbours[id(host)]
            for rank, (host, _) in enumerate(actor.members)
            if id(host) in neighbours
        }
        near = {id(actor.members[rank][0]) for rank in self._local}
        far = [member for member in receivers.members if id(member[0]) not in near]
        self._far = WorkerGroup(receivers.name, far) if far else None

    def __call__(self) -> None:
        """One complete update, where there is something new. The first brings all weights, later ones
        what is trained."""
        version = self.newest()
        if version == self.version:
            return
        sent = self._publish()
        if self._far is not None:
            self._far.stage("receive", sent, route="broadcast").collect()
        else:
            sent.collect()
        self.version = version

    def take(self) -> Weights:
        """The actor's weights as they are now, for receivers in other processes that still act with older
        ones. What is taken is given, in that order."""
        version = self.newest()
        if version == self.version:
            return Weights(version)
        taken = Weights(version, self._publish().collect())
        self.version = version
        return taken

    def give(self, weights: Weights) -> None:
        """Install what was taken; callable from another thread than `take`."""
        if self._far is not None and weights.buckets:
            chunks = Stream.of([bucket] for bucket in weights.buckets)
            self._far.stage("receive", chunks, route="broadcast").collect()

    def newest(self) -> int:
        """The actor's version."""
        version: int = self.actor.call_rank(0, "version").result()
        return version

    def _publish(self) -> Stream:
        return self.actor.stage(
            "publish",
            Stream.of([]),
            local=self._local,
            remote=self._far is not None,
            trainable_only=self.version >= 0,
        )
