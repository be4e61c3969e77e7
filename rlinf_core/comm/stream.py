"""The stream: the only thing that passes between workers, a sequence of chunks of items."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlinf_core.errors import RlinfError

Chunk = list[Any]


class Stream:
    """Chunks in the order in which they get ready, to be iterated over once.

    Whoever stops before the end, or drops the stream, cancels what produces it.
    """

    def __init__(
        self,
        chunks: Iterable[Chunk],
        *,
        result: Callable[[], list[Any]] | None = None,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self._chunks = iter(chunks)
        self._result = result
        self._peeked: list[Chunk] = []
        self._exhausted = False
        self._finalizer = weakref.finalize(self, cancel or _nothing)
        self._finalizer.atexit = False

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Stream:
        """A stream of chunks that the driver makes."""
        return cls(chunks)

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while self._peeked:
                yield self._peeked.pop()
            yield from self._chunks
            self._exhausted = True
        finally:
            if not self._exhausted:
                self.cancel()

    def peek(self) -> Chunk:
        """The next chunk, which stays in the stream; `[]` at the end."""
        if not self._peeked:
            for chunk in self._chunks:
                self._peeked.append(chunk)
                break
            else:
                self._exhausted = True
        return self._peeked[0] if self._peeked else []

    def collect(self) -> list[Any]:
        """All items; waits for the end."""
        return [item for chunk in self for item in chunk]

    @property
    def exhausted(self) -> bool:
        """Whether the last chunk was taken."""
        return self._exhausted

    @property
    def result(self) -> list[Any]:
        """What the stage returned on each rank; raises before the last chunk was taken."""
        if not self._exhausted:
            raise RlinfError("a stream's result exists after its last chunk was taken: iterate or collect it")
        return self._result() if self._result else []

    def map(self, function: Callable[[Chunk], Chunk]) -> Stream:
        """A stream of `function(chunk)`, computed on the driver as the chunks pass."""
        source = iter(self)
        return Stream((function(chunk) for chunk in source), result=lambda: self.result, cancel=self.cancel)

    def cancel(self) -> None:
        """Nobody wants the rest; callable from any thread."""
        self._finalizer()


def _nothing() -> None:
    """The cancellation of a stream that nothing produces."""
