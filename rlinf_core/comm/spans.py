"""What a worker did when: spans of one process, written down where they happen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["run", "wait", "load", "transfer"]


@dataclass(frozen=True)
class Span:
    """A piece of one worker's time, in seconds of this machine's monotonic clock. `wait` spans lie
    within a `run` span; what they cover is idle."""

    worker: str  # "actor[0]"
    name: str  # the stage or method
    kind: SpanKind
    start: float
    end: float
    samples: int = 0


class SpanLog:
    """The spans of one call, until they are sent to the driver."""

    def __init__(self, worker: str, name: str) -> None:
        self.worker = worker
        self.name = name
        self.spans: list[Span] = []

    def add(self, kind: SpanKind, start: float, end: float, samples: int = 0, name: str = "") -> None:
        """Write one down."""
        self.spans.append(Span(self.worker, name or self.name, kind, start, end, samples))


_current: ContextVar[SpanLog | None] = ContextVar("rlinf_spans", default=None)


@contextmanager
def recording(worker: str, name: str) -> Iterator[SpanLog]:
    """Spans of this thread go to the log given, until the block ends."""
    log = SpanLog(worker, name)
    token = _current.set(log)
    try:
        yield log
    finally:
        _current.reset(token)


@contextmanager
def span(kind: SpanKind, samples: int = 0, name: str = "") -> Iterator[None]:
    """Write down how long the block took, where a call is being recorded."""
    log = _current.get()
    if log is None:
        yield
        return
    start = time.monotonic()
    try:
        yield
    finally:
        log.add(kind, start, time.monotonic(), samples, name)
