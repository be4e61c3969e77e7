"""The worker that engines are checked with."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from rlinf_core.worker.worker import Worker, WorkerContext, stage


class EchoWorker(Worker):
    """Returns, counts, fails and doubles."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.calls = 0

    def echo(self, value: Any) -> Any:  # Any: whatever the engine can carry
        """The value itself."""
        return value

    def count(self) -> int:
        """How often it was called."""
        self.calls += 1
        return self.calls

    def fail(self, message: str) -> None:
        """Raise."""
        raise ValueError(message)

    @stage
    def double(self, chunks: Iterator[list[int]]) -> Generator[list[int], None, int]:
        """Twice every number; returns how many there were."""
        seen = 0
        for chunk in chunks:
            seen += len(chunk)
            yield [2 * number for number in chunk]
        return seen
