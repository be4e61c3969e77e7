"""The worker that engines are checked with."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

from rlinf_core.worker.worker import Worker, WorkerContext, stage


class EchoWorker(Worker):
    """Returns, counts, fails, doubles, sends, and dies."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.calls = 0
        self.made = 0

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

    def process(self) -> int:
        """Where it runs."""
        return os.getpid()

    def environment(self, name: str) -> str | None:
        """A variable of its process."""
        return os.environ.get(name)

    def say(self, text: str) -> None:
        """Print to the standard error."""
        print(text, file=sys.stderr, flush=True)

    def pause(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)

    def die(self, text: str) -> None:
        """Say something and end the process at once."""
        self.say(text)
        os.kill(os.getpid(), signal.SIGKILL)

    def send(self, channel: Any, items: list[Any]) -> None:  # Any: an engine's channel, and what it carries
        """Put items and say that they were the last."""
        with channel.connect(self.context.name) as outgoing:
            for item in items:
                outgoing.put(item)
            outgoing.finish()

    def receive(self, channel: Any) -> list[Any]:
        """All items up to the end."""
        with channel.connect(self.context.name) as incoming:
            return list(incoming)

    @stage
    def endless(self, chunks: Iterator[list[int]], size: int) -> Iterator[list[bytes]]:
        """Chunks of so many bytes, for as long as somebody takes them."""
        self.made = 0
        while True:
            self.made += 1
            yield [bytes(size)]

    def chunks_made(self) -> int:
        """How many `endless` has made."""
        return self.made

    @stage
    def double(self, chunks: Iterator[list[int]]) -> Generator[list[int], None, int]:
        """Twice every number; returns how many there were."""
        seen = 0
        for chunk in chunks:
            seen += len(chunk)
            yield [2 * number for number in chunk]
        return seen
