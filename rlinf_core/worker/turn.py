"""One call or stage while it runs: its turn on the device, what it did when, and its samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlinf_core.comm.spans import SpanLog, enter
from rlinf_core.worker.lease import DeviceLease, Holding


class Turn:
    """The time in which a worker's call or stage runs; `spans` is complete when the block has ended.

    with Turn("actor[0]", "train") as turn:
        ...
        with turn.waiting():
            chunk = inputs.get()
    """

    def __init__(self, worker: str, method: str, lease: DeviceLease | None = None) -> None:
        self.log = SpanLog(worker, method)
        self._lease = lease
        self._holding = Holding(worker)
        self._taken = [0, 0]  # items, chunks
        self._given = [0, 0]
        self._began = 0.0
        self._before: SpanLog | None = None

    def __enter__(self) -> Turn:
        self._begin()
        self._began = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        self._pause()
        samples, chunks = self._taken if self._taken[0] >= self._given[0] else self._given
        self.log.add("run", self._began, time.monotonic(), samples, chunks=chunks)

    @property
    def seconds(self) -> float:
        """From its beginning until now."""
        return time.monotonic() - self._began

    def took(self, chunk: list[Any]) -> list[Any]:
        """Count a chunk of input, and pass it on."""
        self._taken[0] += len(chunk)
        self._taken[1] += 1
        return chunk

    def gave(self, chunk: list[Any]) -> list[Any]:
        """Count a chunk of output, and pass it on."""
        self._given[0] += len(chunk)
        self._given[1] += 1
        return chunk

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Others may use this thread and the device meanwhile; what they do is their own."""
        start = time.monotonic()
        self._pause()
        try:
            yield
        finally:
            self.log.add("wait", start, time.monotonic())
            self._begin()

    def _begin(self) -> None:
        self._before = enter(self.log)
        if self._lease is not None:
            try:
                self._lease.acquire(self._holding)
            except BaseException:
                enter(self._before)
                raise

    def _pause(self) -> None:
        if self._lease is not None:
            self._lease.release(self._holding)
        enter(self._before)
