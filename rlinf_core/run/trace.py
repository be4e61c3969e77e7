"""`trace.json`: what every worker did when, in Chrome's trace-event format, which Perfetto opens."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlinf_core.api.spans import HostSpan
from rlinf_core.run.output import writing

Event = dict[str, Any]  # Any: JSON values
TRACE = "trace.json"  # in a run's folder
FIRST_STEPS, LAST_STEPS = 20, 200
STEP_EVENTS = 2000  # written of one step: the longest
DRIVER = "driver"
_CLOSING = b"\n]"


class Trace:
    """Appends every step to a file that is valid JSON at any time.

    One process of the trace is a host, one thread a worker; the driver is a process of its own. The file
    keeps the first and the last steps, so that it stays small however long the run is. A trace of an
    earlier part of the run is kept aside.

        trace = Trace(output / TRACE)
        with trace.span("step"):
            ...
        trace.write(step, engine.drain_spans())
    """

    def __init__(
        self, path: Path, resumed_step: int = 0, first: int = FIRST_STEPS, last: int = LAST_STEPS
    ) -> None:
        self.path = path
        self.first = first
        self.last = last
        self._zero = time.monotonic()
        self._driver: list[Event] = []
        self._places: dict[tuple[str, str], tuple[int, int]] = {}  # host, worker -> pid, tid
        self._names: list[Event] = []
        self._steps = 0
        self._tail: deque[int] = deque()  # where in the file the steps after the first ones begin
        self._resumed_step = resumed_step
        self._place(DRIVER, "run")
        self._head = self._end = self._written = 0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """What the driver does in the block: a step, a weight copy, a switch, a save, an evaluation."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, start, time.monotonic())

    def add(self, name: str, start: float, end: float) -> None:
        """Something that the driver did, in seconds of the monotonic clock."""
        self._driver.append(self._event(DRIVER, "run", name, "driver", start, end))

    def write(self, step: int, spans: Sequence[HostSpan]) -> None:
        """Append what was done since the last time. Raises `RlinfError` when the disk is full."""
        events = [*self._driver, *map(self._worker_event, spans)]
        self._driver = []
        if len(events) > STEP_EVENTS:
            events = heapq.nlargest(STEP_EVENTS, events, key=lambda event: event["dur"])
        for event in events:
            event["args"]["step"] = step
        if not events:
            return
        with writing(self.path):
            if not self._end:
                self._begin()
            named = self._names[self._written :]
            self._written = len(self._names)
            self._append(_lines([*named, *events]))

    def _begin(self) -> None:
        if self.path.exists():
            aside = f"{self.path.stem}-to-step-{self._resumed_step}{self.path.suffix}"
            self.path.replace(self.path.with_name(aside))
        self._written = len(self._names)
        self.path.write_bytes(b"[\n" + _lines(self._names) + _CLOSING)
        self._head = self._end = self.path.stat().st_size - len(_CLOSING)

    def _append(self, lines: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self._end)
            file.write(b",\n" + lines + _CLOSING)
        self._steps += 1
        if self._steps > self.first:
            self._tail.append(self._end)
        self._end += len(lines) + 2
        if self._steps <= self.first:
            self._head = self._end
        elif len(self._tail) >= 2 * self.last:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out what lies between the first steps and the last ones; names are needed all the same."""
        kept = [self._tail[i] for i in range(len(self._tail) - self.last, len(self._tail))]
        with self.path.open("rb") as file:
            head = file.read(self._head) + b",\n" + _lines(self._names)
            file.seek(kept[0])
            tail = file.read(self._end - kept[0])
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(head + tail + _CLOSING)
        os.replace(draft, self.path)
        self._tail = deque(start - kept[0] + len(head) for start in kept)
        self._end = len(head) + len(tail)

    def _worker_event(self, one: HostSpan) -> Event:
        span = one.span
        event = self._event(one.host, span.worker, span.name, span.kind, span.start, span.end)
        if span.samples:
            event["args"] |= {"samples": span.samples, "chunks": span.chunks}
        return event

    def _event(self, host: str, worker: str, name: str, kind: str, start: float, end: float) -> Event:
        pid, tid = self._place(host, worker)
        return {
            "name": kind if kind == "wait" else name,
            "cat": kind,
            "ph": "X",
            "ts": round((start - self._zero) * 1e6, 1),
            "dur": round((end - start) * 1e6, 1),
            "pid": pid,
            "tid": tid,
            "args": {},
        }

    def _place(self, host: str, worker: str) -> tuple[int, int]:
        place = self._places.get((host, worker))
        if place is None:
            pids = {name: pid for (name, _), (pid, _) in self._places.items()}
            pid = pids.get(host, len(pids))
            tid = sum(name == host for name, _ in self._places)
            place = self._places[host, worker] = (pid, tid)
            if host not in pids:
                self._names.append(_named("process", pid, tid, host))
            self._names.append(_named("thread", pid, tid, worker))
        return place


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": f"{what}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _lines(events: Sequence[Event]) -> bytes:
    return b",\n".join(json.dumps(event, separators=(",", ":")).encode() for event in events)
