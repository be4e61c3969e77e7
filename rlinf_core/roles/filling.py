"""Weights that are divided among the actor's ranks: each writes its part into memory that receivers read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rlinf_core.comm.stream import Stream
from rlinf_core.comm.weights import SharedBucket
from rlinf_core.roles.weights import Published
from rlinf_core.worker import WorkerGroup


class Filling:
    """Nothing is gathered: rank 0 makes room, all ranks write, and full buckets go to receivers."""

    def __init__(self, actor: WorkerGroup) -> None:
        self._actor = actor
        self._possible: bool | None = None

    def publish(self, *, trainable_only: bool, in_use: Sequence[int], dtype: str) -> Stream | None:
        """A version's buckets for receivers of the actor's machine; None where ranks hold whole tensors, or
        sit on several machines."""
        if self._possible is None:
            self._possible = self._actor.size > 1 and self._together()
        if not self._possible:
            return None
        room: list[SharedBucket] | None = self._actor.call_rank(
            0, "lay_out", trainable_only=trainable_only, in_use=in_use, dtype=dtype
        ).result()
        if room is None:
            self._possible = False
            return None
        done: list[Published] = []
        return Stream(self._filled(room, trainable_only, done), result=lambda: done)

    def _filled(
        self, room: Sequence[SharedBucket], trainable_only: bool, done: list[Published]
    ) -> Iterator[list[Any]]:
        ranks = Counter[int]()
        chunks = Stream.of([bucket] for bucket in room)
        ranks_alone = WorkerGroup(self._actor.name, self._actor.members)  # whose intake is not that of rows
        writing = ranks_alone.stage("fill", chunks, route="broadcast", trainable_only=trainable_only)
        for numbers in writing:
            ranks.update(numbers)
            for number in numbers:
                if ranks[number] == self._actor.size:
                    yield [room[number]]
        done.append(self._actor.call_rank(0, "filled").result())

    def _together(self) -> bool:
        places = self._actor.call("standpoint").wait()
        return len({place.machine for place in places}) == 1
