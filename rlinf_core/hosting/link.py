"""The driver's handle to one host process: sends calls, receives answers, notices its death at once."""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from rlinf_core.api.engine import Host, WorkerSpec
from rlinf_core.api.spans import HostSpan
from rlinf_core.comm.spans import unpack_spans
from rlinf_core.comm.wire import Message, Packed, Wire, pack
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.hosting.calls import HostCall, HostStageCall
from rlinf_core.hosting.process import HostProcess
from rlinf_core.worker.protocol import Kind

_BURIED_S = 5.0  # that the receiver of a process which has ended may take to tell of it
_LOOK_S = 0.2  # how often a silent process is looked at
_PING_S = 1.0
_STOPPED_S = 3.0  # that a process may be stopped by a signal
_HELLO = 0  # the call number of a host's first message
_MOST_UNREAD = 20_000  # calls whose spans are kept for whoever asks; the oldest go first


@dataclass(frozen=True)
class LinkLimits:
    """How much a link holds and how long it waits."""

    buffer_bytes: int = 256 * 2**20  # of each stage, each way
    timeout_s: float = 3600.0  # longest silence of a process that a call is waiting for; 0 = no limit
    start_timeout_s: float = 60.0  # longest start of a process
    heartbeat_s: float = 60.0  # longest time without an answer of a process, whatever it does; 0 = no limit


class LinkedHost(Host):
    """One process, at the other end of a socket. A thread of the driver receives its messages."""

    def __init__(self, name: str, sock: socket.socket, process: HostProcess, limits: LinkLimits) -> None:
        self.name = name
        self.limits = limits
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stopping = False
        self._spans: deque[bytes] = deque(maxlen=_MOST_UNREAD)
        self._begin(sock, process)

    def _begin(self, sock: socket.socket, process: HostProcess) -> None:
        self.process = process
        self.wire = Wire(sock, self._look_after)
        self._ready = HostCall(self.name, "start")
        self._pending: dict[int, HostCall | HostStageCall] = {_HELLO: self._ready}
        self._death: WorkerDied | None = None
        self._heard = time.monotonic()
        self._pinged = self._heard
        self._unanswered = 0  # pings since it last said something
        self._still = 0  # pings at which it was stopped
        self._lost = ""  # why it was given up
        self._receiver = threading.Thread(target=self._receive, name=f"receiver-{self.name}", daemon=True)
        self._receiver.start()

    def death(self) -> WorkerDied | None:
        """How its process ended; None while it is there, as far as is known."""
        return self._death

    def end_process(self) -> None:
        """Kill the process, if it is there; what waits for it fails."""
        self.process.finish()
        self._receiver.join(_BURIED_S)

    def renew(self, sock: socket.socket, process: HostProcess) -> None:
        """Hold another process from now on, after the end of the former one. It has no workers."""
        self._begin(sock, process)

    def wait_ready(self) -> None:
        """Wait for the process to say that it is there."""
        self._ready.result(self.limits.start_timeout_s)

    def create(self, spec: WorkerSpec) -> HostCall:
        """Build a worker in the process."""
        return self._start_call(Kind.CREATE, HostCall(spec.name, "__init__"), spec)

    def call(self, worker: str, method: str, *args: Any, **kwargs: Any) -> HostCall:
        """Call a method."""
        return self._start_call(Kind.CALL, HostCall(worker, method), (worker, method, args, kwargs))

    def stage(self, worker: str, method: str, *args: Any, **kwargs: Any) -> HostStageCall:
        """Start a stage; it buffers its input until the calls before it have ended."""
        packed = pack((worker, method, args, kwargs))
        number = next(self._numbers)
        stage = HostStageCall(
            worker, method, number, self._send, self.limits.buffer_bytes, starts_now=not self._pending
        )
        self._announce(number, stage)
        self._send(Kind.STAGE, number, packed)
        return stage

    def drop(self, worker: str) -> HostCall:
        """Close and forget a worker."""
        return self._start_call(Kind.DROP, HostCall(worker, "close"), worker)

    def drain_spans(self) -> list[HostSpan]:
        """What its workers did since the last time it was asked."""
        notes = [self._spans.popleft() for _ in range(len(self._spans))]
        return [HostSpan(self.name, span) for note in notes for span in unpack_spans(note)]

    def ask_to_stop(self) -> None:
        """Let the workers close and the process exit."""
        self._stopping = True
        if self._death is None:
            try:
                self.wire.send(Kind.STOP, 0, pack(None))
            except OSError:  # it is ending already; the receiver reports how
                return

    def finish(self) -> None:
        """Kill what is left; every call still pending fails."""
        self.end_process()

    def _start_call(self, kind: Kind, call: HostCall, content: Any) -> HostCall:
        packed = pack(content)
        number = next(self._numbers)
        self._announce(number, call)
        self._send(kind, number, packed)
        return call

    def _announce(self, number: int, call: HostCall | HostStageCall) -> None:
        with self._lock:
            if self._death is None:
                self._pending[number] = call
                return
        call.fail(self._death_of(call))

    def _send(self, kind: Kind, number: int, packed: Packed) -> None:
        if self._death is None:
            try:
                self.wire.send(kind, number, packed)
            except OSError as error:
                self._receiver.join(2.0)
                if self._receiver.is_alive():  # otherwise the process has died, which the calls tell
                    with self._lock:
                        self._pending.pop(number, None)
                    raise WorkerError(
                        f"a message of {packed.size} bytes cannot be sent to process {self.name}: {error}",
                        worker=self.name,
                    ) from error

    def _receive(self) -> None:
        trouble = ""
        try:
            self._listen()
        except Exception as error:  # the border of a thread: nobody may wait for what will not come
            trouble = f"; its messages could not be received: {error!r}"
        self._bury(trouble)

    def _listen(self) -> None:
        """Take in messages until the process is over, or has hung up, or is given up."""
        poller = select.poll()
        poller.register(self.wire.socket, select.POLLIN)
        while not self._lost:
            if poller.poll(_LOOK_S * 1000):
                message = self.wire.receive()
                if message is None:
                    return
                self._unanswered = 0
                if message.kind != Kind.PONG:
                    self._heard = time.monotonic()
                    self._dispatch(message)
            elif self.process.ended():
                return
            else:
                self._check_silence()
                self._lost = self._check_pulse()

    def _dispatch(self, message: Message) -> None:
        with self._lock:
            ends = message.kind in (Kind.HELLO, Kind.RESULT, Kind.ERROR)
            call = self._pending.pop(message.call, None) if ends else self._pending.get(message.call)
        if message.kind in (Kind.RESULT, Kind.ERROR):
            self._spans.append(message.note())
        if call is not None:
            call.receive(message)

    def _check_silence(self) -> None:
        limit = self.limits.timeout_s
        calls = list(self._pending.values())
        if (
            not limit
            or not self._ready.done()
            or not calls
            or not all(call.waits_for_worker() for call in calls)
        ):
            return
        first = calls[0]
        if time.monotonic() - max(self._heard, first.began) > limit:
            self._fail_all(
                f"{self.process.title} has been silent for {limit:g} s; a larger engine.timeout_s allows more"
            )

    def _check_pulse(self) -> str:
        """Why a silent process has to be given up; "" if it need not. Pings are counted, not seconds, so that
        on a machine where both get little time none is given up for that."""
        now = time.monotonic()
        if now - self._pinged < _PING_S or not self._ready.done():
            return ""
        self._pinged = now
        self._unanswered += 1
        self._still = self._still + 1 if self.process.stopped() else 0
        self.wire.nudge(Kind.PING)
        limit = self.limits.heartbeat_s
        if self._still * _PING_S > _STOPPED_S:
            return f"was stopped by a signal, did not go on within {_STOPPED_S:g} s, and was killed"
        if limit and self._unanswered * _PING_S > limit:
            return f"has not answered for {limit:g} s (engine.heartbeat_s) and was killed"
        return ""

    def _look_after(self) -> None:
        """The rest of a message does not come."""
        self._lost = self._lost or self._check_pulse()
        if self._lost:
            raise ConnectionError(self._lost)

    def _bury(self, trouble: str) -> None:
        """End the process if it has not ended, and tell everybody who waits for it."""
        self.process.wait(0.0 if trouble or self._lost else 1.0)
        ended = self.process.finish()
        ending = self._lost or ended
        how = "was stopped" if self._stopping else ending
        tail = "" if self._stopping else self.process.tail()
        text = f"{self.process.title} {how}{trouble}"
        if tail:
            text += "; the last lines it printed:\n" + tail
        with self._lock:
            self._death = WorkerDied(text, worker=self.name)
        self._fail_all(text)
        self.wire.close()

    def _fail_all(self, text: str) -> None:
        """Those that wait for their turn fail too, and name the one whose turn it was: the first."""
        with self._lock:
            calls = list(self._pending.values())
            self._pending.clear()
        for call in calls:
            worker, method = calls[0].worker, calls[0].method
            call.fail(WorkerDied(f"{worker}.{method} failed: {text}", worker=worker))

    def _death_of(self, call: HostCall | HostStageCall) -> WorkerDied:
        return WorkerDied(f"{call.worker}.{call.method} cannot run: {self._death}", worker=call.worker)
