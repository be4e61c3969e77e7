"""Calls and stages that run in a host process, as the driver holds them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rlinf_core.api.engine import Call, StageCall
from rlinf_core.comm.channel import Channel
from rlinf_core.comm.credit import Credit, Receipts
from rlinf_core.comm.wire import Message, Packed, pack
from rlinf_core.errors import WorkerError
from rlinf_core.worker.failures import StageCancelledError, raised
from rlinf_core.worker.protocol import Kind

Send = Callable[[Kind, int, Packed], None]


class HostCall(Call):
    """A call; its answer is unpickled by whoever asks for it."""

    def __init__(self, worker: str, method: str) -> None:
        self.worker = worker
        self.method = method
        self.began = time.monotonic()
        self._settled = threading.Event()
        self._answer: Message | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether an answer or a failure is there."""
        return self._settled.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait without raising the call's error."""
        return self._settled.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """The return value. Raises `WorkerError`."""
        if not self._settled.wait(timeout_s):
            raise WorkerError(
                f"{self.worker}.{self.method} has not answered within {timeout_s:g} s", worker=self.worker
            )
        if self._answer is not None:
            self._read(self._answer)
        if self._error is not None:
            raise self._error
        return self._value

    def waits_for_worker(self) -> bool:
        """Whether it is the worker's turn to say something."""
        return True

    def receive(self, message: Message) -> None:
        """Take in the answer."""
        if message.kind == Kind.ERROR:
            self.fail(_load_error(message))
        else:
            self._answer = message
            self._settled.set()

    def fail(self, error: BaseException) -> None:
        """There will be no answer."""
        if not self._settled.is_set():
            self._error = error
            self._settled.set()

    def _read(self, answer: Message) -> None:
        try:
            self._value, self.seconds = answer.load()
        except Exception as error:  # the border of a process: the answer may need a module we lack
            self._error = raised(error, self.worker, self.method)
        self._answer = None


class HostStageCall(StageCall):
    """A stage; chunks wait here, bounded by bytes, until they are iterated over."""

    def __init__(
        self, worker: str, method: str, number: int, send: Send, limit: int, *, starts_now: bool
    ) -> None:
        self.worker = worker
        self.method = method
        self.began = time.monotonic()
        self._number = number
        self._send = send
        self._credit = Credit(limit, bounded=starts_now)
        self._receipts = Receipts(limit)
        self._outputs: Channel[Message] = Channel()
        self._input_ended = False
        self._ended = HostCall(worker, method)

    def send(self, chunk: list[Any]) -> None:
        """Give the stage a chunk; waits while the running stage has too much untaken input."""
        packed = pack(chunk)
        if self._credit.spend(packed.size):
            self._send(Kind.INPUT, self._number, packed)

    def close(self) -> None:
        """No more chunks will come."""
        if not self._input_ended and not self._ended.done():
            self._input_ended = True
            self._send(Kind.INPUT_END, self._number, pack(None))

    def cancel(self) -> None:
        """End the stage soon; without effect after its end."""
        if self._ended.done():
            return
        self._outputs.abandon(StageCancelledError(f"{self.worker}.{self.method} was cancelled"))
        self._credit.release()
        self._send(Kind.CANCEL, self._number, pack(None))

    def __iter__(self) -> Iterator[list[Any]]:
        for message in self._outputs:
            taken = self._receipts.take(message.size)
            if taken and not self._ended.done():
                self._send(Kind.TAKEN, self._number, pack(taken))
            yield message.load()

    def result(self) -> Any:
        """What the stage returned; waits for its end."""
        return self._ended.result()

    def waits_for_worker(self) -> bool:
        """Whether it is the worker's turn: it has all of its input, and nothing of it is untaken."""
        return self._input_ended and self._outputs.empty()

    def receive(self, message: Message) -> None:
        """Take in a message; never blocks."""
        if message.kind == Kind.OUTPUT:
            self._outputs.put(message)
        elif message.kind == Kind.STARTED:
            self._credit.start_bounding()
        elif message.kind == Kind.TAKEN:
            self._credit.refund(message.load())
        elif message.kind == Kind.ERROR:
            self.fail(_load_error(message))
        else:
            self._ended.receive(message)
            self._outputs.close()
            self._credit.release()

    def fail(self, error: BaseException) -> None:
        """There will be no end: whoever iterates gets the error now."""
        self._ended.fail(error)
        self._outputs.abandon(error)
        self._credit.release()


def _load_error(message: Message) -> BaseException:
    error: WorkerError
    error, cause = message.load()
    error.__cause__ = cause
    return error
