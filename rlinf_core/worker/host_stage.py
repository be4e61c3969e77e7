"""A stage as its host process sees it: chunks come from the driver, and go back to it, bounded by bytes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from rlinf_core.comm.channel import Channel
from rlinf_core.comm.credit import Credit, Receipts
from rlinf_core.comm.wire import Message, Wire, pack
from rlinf_core.worker.failures import StageCancelledError
from rlinf_core.worker.protocol import Kind
from rlinf_core.worker.turn import Turn


class HostStage:
    """Buffers a stage's input from the moment it is announced, also while other calls still run."""

    def __init__(self, wire: Wire, call: int, limit: int) -> None:
        self._wire = wire
        self._call = call
        self._inputs: Channel[Message] = Channel()
        self._receipts = Receipts(limit)
        self._credit = Credit(limit, bounded=True)
        self._cancelled = False

    def receive(self, message: Message) -> None:
        """Take in a message about this stage; never blocks."""
        if message.kind == Kind.INPUT:
            self._inputs.put(message)
        elif message.kind == Kind.INPUT_END:
            self._inputs.close()
        elif message.kind == Kind.TAKEN:
            self._credit.refund(message.load())
        elif message.kind == Kind.CANCEL:
            self.cancel()

    def cancel(self) -> None:
        """End at the next input or output."""
        self._cancelled = True
        self._inputs.abandon(_cancelled())
        self._credit.release()

    def inputs(self, turn: Turn) -> Iterator[list[Any]]:
        """The chunks, as the stage takes them."""
        self._wire.send(Kind.STARTED, self._call, pack(None))
        while (message := self._next(turn)) is not None:
            taken = self._receipts.take(message.size)
            if taken:
                self._wire.send(Kind.TAKEN, self._call, pack(taken))
            yield turn.took(message.load())

    def run(self, generator: Generator[list[Any], None, Any], turn: Turn) -> Any:
        """Send every chunk that the stage yields; returns the stage's result."""
        while True:
            try:
                chunk = next(generator)
            except StopIteration as end:
                return end.value
            packed = pack(turn.gave(chunk))
            if self._credit.used_up:
                with turn.waiting():
                    self._credit.spend(packed.size)
            else:
                self._credit.spend(packed.size)
            if self._cancelled:
                generator.close()
                raise _cancelled()
            self._wire.send(Kind.OUTPUT, self._call, packed)

    def _next(self, turn: Turn) -> Message | None:
        if not self._inputs.empty():
            return next(self._inputs, None)
        with turn.waiting():
            return next(self._inputs, None)


def _cancelled() -> StageCancelledError:
    return StageCancelledError(
        "the stage was cancelled: nobody takes, or nobody makes, the rest of its chunks"
    )
