"""The proxy's line to its engine's process: calls with answers, progress as it comes, and its end."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_core.errors import RlinfError, WorkerDied, WorkerError
from rlinf_core.isolated_rollout.engine import Progress
from rlinf_core.isolated_rollout.protocol import Kind, unpack_progress
from rlinf_core.isolation.child import retold
from rlinf_core.isolation.process import ChildProcess, quoted
from rlinf_core.isolation.wire import Message

START_S = 600.0  # that a process may take until its engine is there
SILENT_S = 5.0  # without an answer to a ping, after which people are told
_PING_S = 1.0
_LOOK_S = 0.25
_END_S = 1.0  # that a process whose socket is closed may take to end
_CLOSE_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """Progress of a job, with the weight version that it was made with."""

    version: int
    progress: Progress


class Link:
    """Threads may share it: whoever waits takes in what arrives, for all of them."""

    def __init__(self, process: ChildProcess, name: str, timeout_s: float) -> None:
        self.process = process
        self.name = name
        self.timeout_s = timeout_s
        self.made: deque[Made] = deque()
        self.hello: dict[str, Any] | None = None  # Any: plain values
        self._answers: dict[int, Any] = {}
        self._errors: dict[int, RlinfError] = {}
        self._numbers = itertools.count(1)
        self._dead: RlinfError | None = None
        self._reading = threading.RLock()
        self._pinged = time.monotonic()
        self._steps = -1
        self._unanswered = 0  # pings since it last said something
        self._idle = 0  # answers to pings since anything else happened there
        self._named = False

    @property
    def alive(self) -> bool:
        """As far as is known."""
        return self._dead is None

    def start(self, said: dict[str, Any]) -> dict[str, Any]:  # Any: plain values
        """What the engine says of itself."""
        self.send(Kind.START, said)
        self._wait(lambda: self.hello is not None, time.monotonic() + START_S)
        return self.hello or {}

    def send(self, kind: Kind, said: Any = None, raw: bytes = b"") -> None:  # Any: plain values
        """Without an answer."""
        if self._dead is not None:
            raise self._dead
        try:
            self.process.wire.send(kind, said, raw)
        except OSError:
            self._read()  # what it said last
            raise self._lose(None) from None

    def call(self, kind: Kind, **said: Any) -> Any:  # Any: plain values
        """Send it and wait for the answer."""
        return self.answer(self.ask(kind, **said))

    def ask(self, kind: Kind, **said: Any) -> int:  # Any: plain values
        """Send it; the number is for `answer`."""
        number = next(self._numbers)
        self.send(kind, {"call": number, **said})
        return number

    def answer(self, number: int) -> Any:  # Any: plain values
        """Wait for it. Raises what the process raised."""
        self._wait(lambda: number in self._answers or number in self._errors)
        if number in self._errors:
            raise self._errors.pop(number)
        return self._answers.pop(number)

    def wait_for_progress(self, until: Callable[[], bool], longest_s: float = math.inf) -> None:
        """Return when there is some, or something else is true, or after so long."""
        end = time.monotonic() + longest_s
        self._wait(lambda: bool(self.made) or until() or time.monotonic() >= end, look_s=longest_s)

    def close(self) -> None:
        """The process has ended when this returns."""
        with contextlib.suppress(OSError):  # it has ended
            self.process.wire.send(Kind.CLOSE)
        self.process.kill(_CLOSE_S if self.hello and self._dead is None else 0.0)
        self._dead = self._dead or WorkerError(f"rollout {self.name}: its process was closed")

    def _wait(
        self, true: Callable[[], bool], deadline: float | None = None, look_s: float = math.inf
    ) -> None:
        if look_s > _LOOK_S:  # short waits come one after the other, and what they count adds up
            self._unanswered = self._idle = 0
        while not true():
            with self._reading:
                if true():
                    return
                if self._dead is not None:
                    raise self._dead
                self._take(min(look_s, _LOOK_S))
                self._watch(deadline)

    def _take(self, look_s: float) -> None:
        poller = select.poll()
        for number in self.process.descriptors():
            poller.register(number, select.POLLIN)
        poller.poll(look_s * 1000)
        if not self._read():
            raise self._lose(None)

    def _read(self) -> bool:
        """Take in what is there; False at the end of it."""
        try:
            messages = self.process.arrived()
        except (EOFError, OSError):
            return False
        for message in messages:
            self._unanswered, self._named = 0, False
            self._sort(message)
        return True

    def _sort(self, message: Message) -> None:
        said = message.said
        self._idle = self._idle + 1 if message.kind == Kind.PONG and said == self._steps else 0
        if message.kind == Kind.PROGRESS:
            self.made.extend(Made(said, each) for each in unpack_progress(message.raw))
        elif message.kind == Kind.PONG:
            self._steps = said
        elif message.kind == Kind.HELLO:
            self.hello = said
        elif message.kind == Kind.ANSWER:
            self._answers[said["call"]] = said["value"]
        elif "call" in said:
            self._errors[said["call"]] = self._error(said)
        else:
            self._dead = self._error(said)
            self.process.kill(_END_S)
            raise self._dead

    def _error(self, said: dict[str, Any]) -> RlinfError:  # Any: plain values
        known = retold(said)
        if known is not None:
            return known
        message = (
            f"rollout {self.name}: {said['where']} failed in its process (pid {self.process.pid}): "
            f"{said['message']}\n{said['traceback'].rstrip()}"
        )
        return WorkerError(message, worker=f"rollout {self.name}", traceback=said["traceback"])

    def _watch(self, deadline: float | None) -> None:
        """Ping; name a process that is silent, and give it up in the end. Pings are counted, not seconds, so
        that on a machine where both get little time none is given up for that."""
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise self._lose(f"was not there after {START_S:g} s and was killed")
        if self.hello is None or now - self._pinged < _PING_S:
            return
        self._pinged = now
        self._unanswered += 1
        self.send(Kind.PING)
        if self._unanswered > SILENT_S / _PING_S and not self._named:
            self._named = True
            _log.warning(
                "rollout %s: its process (pid %d) has been silent for %.0f s%s",
                self.name,
                self.process.pid,
                self._unanswered * _PING_S,
                quoted(self.process.tail()),
            )
        if self._unanswered * _PING_S > self.timeout_s:
            raise self._lose(f"was silent for {self.timeout_s:g} s and was killed")
        if self._idle * _PING_S > self.timeout_s:
            raise self._lose(f"made no step and gave no answer for {self.timeout_s:g} s and was killed")

    def _lose(self, why: str | None) -> RlinfError:
        if self._dead is None:
            ending = self.process.kill(_END_S if why is None else 0.0)
            message = f"rollout {self.name}: its process (pid {self.process.pid}) {why or ending}"
            self._dead = WorkerDied(message + quoted(self.process.tail()), worker=f"rollout {self.name}")
        return self._dead
