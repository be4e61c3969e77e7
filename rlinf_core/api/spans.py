"""What a worker did when, as it travels from the process that wrote it down to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

SpanKind = Literal["run", "wait", "load", "transfer"]


class Span(NamedTuple):
    """A piece of one worker's time, in seconds of this machine's monotonic clock. `wait` spans lie
    within a `run` span; what they cover is idle. `load` spans say that this worker's memory was moved
    onto the device or off it, before the run of whichever worker needed that, or within it.

    `samples` of a stage are the items of its chunks: of those that it took, or of those that it
    yielded where these were more; `chunks` is how many chunks they came in.
    """

    worker: str  # "actor[0]"
    name: str  # the stage or method
    kind: SpanKind
    start: float
    end: float
    samples: int = 0
    chunks: int = 0


@dataclass(frozen=True)
class HostSpan:
    """A span and the host where it was written down."""

    host: str  # "device0"
    span: Span
