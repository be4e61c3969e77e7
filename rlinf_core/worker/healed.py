"""A stage on one rank that goes on when the rank's process is lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rlinf_core.api.engine import Host, StageCall
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.types import EpisodeRequest, Experience, Request

Chunk = list[Any]
_IN_COMPANY = 2  # losses of a stage, after which its rows are made one by one


class Healer(Protocol):
    """Brings workers back."""

    def heal(self, host: Host, death: WorkerDied, since: float) -> None:
        """Start the process again, with its workers, unless that was done since that moment of the monotonic
        clock. Raises an error, such as this one, where the run cannot go on."""

    def spare(self, item: Any, death: WorkerDied) -> Any:
        """What stands for a row that costs its worker's process whenever it is made."""


class HealedCall(StageCall):
    """Gives a new process all that the former one was given, in the same order, and leaves out the rows that
    have come already: what comes is what would have come.

    Where that costs the process again, rows that have not come are made one by one, each in a stage of its
    own. One that costs the process then is set aside.
    """

    def __init__(self, host: Host, begin: Callable[[], StageCall], healer: Healer) -> None:
        self._host = host
        self._begin = begin
        self._healer = healer
        self._given: list[Chunk] = []
        self._complete = False  # all was given
        self._over = False
        self._losses = 0
        self._came: set[tuple[int, int]] = set()
        self._changed = threading.Condition()
        self._open()

    def feed(self, chunks: Iterator[Chunk]) -> bool:
        """Never: what is given is kept."""
        return False

    def send(self, chunk: Chunk) -> None:
        """Give the stage a chunk."""
        with self._changed:
            self._given.append(chunk)
            self._changed.notify_all()
            first = self._call if not self._losses else None
        if first is not None:
            first.send(chunk)

    def close(self) -> None:
        """No more chunks will come."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()
            first = self._call if not self._losses else None
        if first is not None:
            first.close()

    def cancel(self) -> None:
        """Nobody wants the rest."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._call.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                try:
                    yield from self._fresh()
                    return
                except WorkerDied as death:
                    self._heal(death)
                if self._losses >= _IN_COMPANY and self._has_rows():
                    break
                self._open()
                threading.Thread(
                    target=self._give, args=(self._call,), name="give-again", daemon=True
                ).start()
            yield from self._one_by_one()
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def result(self) -> Any:
        """What the stage returned."""
        return self._call.result()

    def _open(self) -> None:
        self._opened = time.monotonic()
        self._call = self._begin()

    def _heal(self, death: WorkerDied) -> None:
        with self._changed:
            if self._over:
                raise death
            self._losses += 1
        self._healer.heal(self._host, death, self._opened)

    def _give(self, call: StageCall) -> None:
        """All that was given, and what is given yet, to a new process."""
        try:
            for chunk in self._all_given():
                if self._call is not call:
                    return
                call.send(chunk)
            if self._complete:
                call.close()
        except WorkerError:  # whoever iterates hears of it
            call.cancel()

    def _one_by_one(self) -> Iterator[Chunk]:
        whole = False
        for item in (item for chunk in self._all_given() for item in chunk):
            if _name(item) in self._came:
                continue
            try:
                yield from self._alone([item])
                whole = True
            except WorkerDied as death:
                self._heal(death)
                self._came.add(_name(item))
                yield [self._healer.spare(item, death)]
                whole = False
        if not whole:  # what the stage returns is that of its last process
            yield from self._alone()

    def _alone(self, *chunks: Chunk) -> Iterator[Chunk]:
        self._open()
        for chunk in chunks:
            self._call.send(chunk)
        self._call.close()
        yield from self._fresh()

    def _all_given(self) -> Iterator[Chunk]:
        for position in itertools.count():
            with self._changed:
                while not (self._over or self._complete or position < len(self._given)):
                    self._changed.wait()
                if self._over or position == len(self._given):
                    return
                chunk = self._given[position]
            yield chunk

    def _fresh(self) -> Iterator[Chunk]:
        """Rows that have not come before."""
        for chunk in self._call:
            if not chunk or not isinstance(chunk[0], Experience):
                yield chunk
                continue
            fresh = [row for row in chunk if _name(row) not in self._came]
            self._came.update(_name(row) for row in fresh)
            if fresh:
                yield fresh

    def _has_rows(self) -> bool:
        """Whether what is given has names, by which it is known what has come of it."""
        given = (item for chunk in list(self._given) for item in chunk)
        return all(isinstance(item, (Request, EpisodeRequest, Experience)) for item in given)


def _name(row: Any) -> tuple[int, int]:
    return row.group, row.replica
