"""Writes down what a worker does when, in the process where it happens."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from rlinf_core.api.spans import Span, SpanKind

__all__ = [
    "Span",
    "SpanKind",
    "SpanLog",
    "current",
    "enter",
    "pack_spans",
    "recording",
    "span",
    "unpack_spans",
]


class SpanLog:
    """The spans of one call, until they are sent to the driver."""

    def __init__(self, worker: str, name: str) -> None:
        self.worker = worker
        self.name = name
        self.spans: list[Span] = []

    def add(
        self,
        kind: SpanKind,
        start: float,
        end: float,
        samples: int = 0,
        name: str = "",
        chunks: int = 0,
        worker: str = "",
    ) -> None:
        """Write one down; `worker` where it is another one of this process that works here."""
        self.spans.append(Span(worker or self.worker, name or self.name, kind, start, end, samples, chunks))


_current: ContextVar[SpanLog | None] = ContextVar("rlinf_spans", default=None)


def current() -> SpanLog | None:
    """The log that this thread's spans go to."""
    return _current.get()


def enter(log: SpanLog | None) -> SpanLog | None:
    """Spans of this thread go to the log given from now on; returns the log so far."""
    before = _current.get()
    _current.set(log)
    return before


@contextmanager
def recording(worker: str, name: str) -> Iterator[SpanLog]:
    """Spans of this thread go to a new log, until the block ends."""
    log = SpanLog(worker, name)
    before = enter(log)
    try:
        yield log
    finally:
        enter(before)


@contextmanager
def span(kind: SpanKind, samples: int = 0, name: str = "", worker: str = "") -> Iterator[None]:
    """Write down how long the block took, where a call is being recorded."""
    log = _current.get()
    if log is None:
        yield
        return
    start = time.monotonic()
    try:
        yield
    finally:
        log.add(kind, start, time.monotonic(), samples, name, worker=worker)


def pack_spans(spans: Sequence[Span]) -> bytes:
    """A few bytes a span, quickly."""
    return pickle.dumps([tuple(span) for span in spans], protocol=5)


def unpack_spans(data: bytes) -> list[Span]:
    """What `pack_spans` was given."""
    return [Span(*values) for values in pickle.loads(data)]  # noqa: S301 - from a process of this run, which has shown its token
