"""The main program of a host process: runs workers' calls and stages one after the other, in order.

Started by an engine as `python -m rlinf_core.worker.host SETTINGS` in a session of its own, with a
socket whose other end the driver has. It ends when it is told to, and within a second when its driver is
gone, also if the driver could not say so: then it takes the processes that its workers started with it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from rlinf_core.api.engine import WorkerSpec
from rlinf_core.comm.channel import Channel
from rlinf_core.comm.network import unheard_s
from rlinf_core.comm.spans import SpanLog, pack_spans
from rlinf_core.comm.wire import Message, Wire, pack
from rlinf_core.errors import ChannelClosed, RlinfError
from rlinf_core.leaving import leave
from rlinf_core.worker.failures import raised
from rlinf_core.worker.host_stage import HostStage
from rlinf_core.worker.protocol import Kind
from rlinf_core.worker.table import WorkerTable
from rlinf_core.worker.turn import Turn

_LOOK_S = 0.25  # how often an idle host checks that its driver still lives
_CLOSING_S = 0.5  # what workers get to close in when the driver is gone


@dataclass(frozen=True)
class HostSettings:
    """What a host process is told on its command line."""

    descriptor: int  # its end of the socket pair
    driver: int  # id of the process that started it and lives as long as the driver
    threads: int
    cores: tuple[int, ...]
    buffer_bytes: int  # of each stage, each way
    silence_s: float = 5.0  # of the driver's machine, where that is another one, after which it is gone

    def to_argument(self) -> str:
        """As one command-line argument."""
        return json.dumps(asdict(self))


class HostProcess:
    """A thread receives; the main thread works."""

    def __init__(self, wire: Wire, settings: HostSettings) -> None:
        self.wire = wire
        self.settings = settings
        self._far = wire.socket.family != socket.AF_UNIX
        self.table = WorkerTable(reach=wire.socket.getsockname()[0] if self._far else "")
        self._jobs: Channel[Message] = Channel()
        self._stages: dict[int, HostStage] = {}
        self.told_to_stop = False

    def serve(self) -> bool:
        """Work until told to stop; False if something went wrong in closing."""
        threading.Thread(target=self._receive, name="host-receiver", daemon=True).start()
        self.wire.send(Kind.HELLO, 0, pack((None, 0.0)))
        while True:
            try:
                self._work(self._jobs.get())
            except (ChannelClosed, OSError):  # told to stop; or there is nobody to answer any more
                return self.table.close()

    def _work(self, job: Message) -> None:
        turn = Turn("", "")
        try:
            content = job.load()
            turn = self._turn(job.kind, content)
            with turn:
                value = self._do(job, content, turn)
            answer = pack((value, turn.seconds), pack_spans(turn.log.spans))
        except BaseException as error:  # the border of a worker: the driver raises it
            self._stages.pop(job.call, None)
            self._send_error(job.call, error, turn.log)
            return
        self._stages.pop(job.call, None)
        self.wire.send(Kind.RESULT, job.call, answer)

    def _turn(self, kind: int, content: Any) -> Turn:
        if kind == Kind.CREATE:
            return Turn(content.name, "__init__")
        if kind == Kind.DROP:
            return Turn(content, "close")
        worker, method, _, _ = content
        return self.table.turn(worker, method)

    def _do(self, job: Message, content: Any, turn: Turn) -> Any:
        if job.kind == Kind.CREATE:
            return self._create(content)
        if job.kind == Kind.DROP:
            return self.table.drop(content)
        worker, method, args, kwargs = content
        if job.kind == Kind.CALL:
            return self.table.call(worker, method, args, kwargs)
        stage = self._stages[job.call]
        return stage.run(self.table.stage(worker, method, stage.inputs(turn), args, kwargs), turn)

    def _create(self, spec: WorkerSpec) -> str:
        self.table.create(spec)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.settings.threads)
        return spec.name

    def _send_error(self, call: int, error: BaseException, log: SpanLog) -> None:
        wrapped = raised(error, log.worker, log.name, self.table.resident)
        cause = wrapped.__cause__ if type(wrapped.__cause__).__module__ == RlinfError.__module__ else None
        self.wire.send(Kind.ERROR, call, pack((wrapped, cause), pack_spans(log.spans)))

    def _receive(self) -> None:
        try:
            self._listen()
        finally:
            self._jobs.abandon()
            for stage in list(self._stages.values()):
                stage.cancel()
            while self.told_to_stop and self._driver_lives():
                time.sleep(_LOOK_S)
            time.sleep(_CLOSING_S)
            end_session()

    def _listen(self) -> None:
        """Take in messages until told to stop, or until the driver is gone."""
        poller = select.poll()
        poller.register(self.wire.socket, select.POLLIN)
        while self._driver_lives():
            if not poller.poll(_LOOK_S * 1000):
                continue
            message = self.wire.receive()
            if message is None:
                return
            if message.kind == Kind.STOP:
                self.told_to_stop = True
                return
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        if message.kind in (Kind.CREATE, Kind.CALL, Kind.STAGE, Kind.DROP):
            if message.kind == Kind.STAGE:
                self._stages[message.call] = HostStage(self.wire, message.call, self.settings.buffer_bytes)
            self._jobs.put(message)
            return
        if message.kind == Kind.PING:
            self.wire.nudge(Kind.PONG)
            return
        stage = self._stages.get(message.call)
        if stage is not None:  # it may have ended already
            stage.receive(message)

    def _driver_lives(self) -> bool:
        """Whether the process that started this one is there, and the machine of the driver answers."""
        if os.getppid() != self.settings.driver:
            return False
        return not self._far or unheard_s(self.wire.socket) < self.settings.silence_s


def end_session() -> None:
    """Kill this process and all that it started, where it leads a session of its own."""
    if os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(argument: str) -> None:
    """Serve the driver at the other end of the socket."""
    settings = HostSettings(**json.loads(argument))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    os.set_inheritable(settings.descriptor, False)
    host = HostProcess(Wire(socket.socket(fileno=settings.descriptor)), settings)
    good = host.serve()
    if not host.told_to_stop:
        end_session()
    leave(0 if good else 1)


if __name__ == "__main__":
    main(sys.argv[1])
