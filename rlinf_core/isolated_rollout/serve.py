"""The program of an engine's process: one thread listens, the main one works."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlinf_core.comm.places import Place
from rlinf_core.errors import ModelError, PluginError
from rlinf_core.isolated_rollout.buckets import WRAP, Bucket
from rlinf_core.isolated_rollout.engine import Installed, IsolatedEngine, Progress, Setup
from rlinf_core.isolated_rollout.names import is_adapter
from rlinf_core.isolated_rollout.protocol import VERSION, Kind, pack_progress, unpack_jobs
from rlinf_core.isolation.child import run, told
from rlinf_core.isolation.values import decode, find
from rlinf_core.isolation.wire import Message, Wire
from rlinf_core.types import Sampling


class Server:
    """An engine, the jobs that run in it, and what was sent of its weights."""

    def __init__(self, wire: Wire, memory: int) -> None:
        self.wire = wire
        self.path = f"/proc/{os.getpid()}/fd/{memory}"  # other processes of the engine can open it too
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.running: set[int] = set()
        self.steps = 0
        self.version = -1  # of the weights; -1 = none, or an update is under way
        self.sent: dict[str, int] = {}  # name -> digest
        self.engine: IsolatedEngine | None = None

    def listen(self) -> None:
        """Answer pings, and put everything else in the inbox. Ends the process when the parent is gone."""
        try:
            while True:
                message = self.wire.receive()
                if message.kind == Kind.PING:
                    self.wire.send(Kind.PONG, self.steps)
                else:
                    self.inbox.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def work(self) -> None:
        """Until told to close, or until something failed that leaves the engine in an unknown state."""
        try:
            self._start(self.inbox.get().said)
        except Exception as error:  # the border of a process: the parent raises it
            self.wire.send(Kind.ERROR, told(error, "the start"))
            return
        while True:
            for message in self._arrived():
                if message.kind == Kind.CLOSE:
                    self._engine.close()
                    return
                if not self._handle(message):
                    return
            if self.running and not self._step():
                return

    @property
    def _engine(self) -> IsolatedEngine:
        if self.engine is None:
            raise PluginError("a rollout engine was asked before it was started")
        return self.engine

    def _start(self, said: Any) -> None:  # Any: plain values
        if said["version"] != VERSION:
            raise PluginError(f"a proxy of protocol {said['version']} started one of protocol {VERSION}")
        setup: Setup = decode(said["setup"])
        self.engine = find(said["target"])(decode(said["config"]), setup)
        hello = vars(self._engine.hello())
        self.wire.send(Kind.HELLO, {"version": VERSION, "python": sys.version.split()[0], **hello})

    def _arrived(self) -> Iterator[Message]:
        """What is there; without a job, wait for something."""
        if not self.running:
            yield self.inbox.get()
        while not self.inbox.empty():
            yield self.inbox.get()

    def _step(self) -> bool:
        try:
            made = self._engine.step()
        except Exception as error:  # as in `work`
            self.wire.send(Kind.ERROR, told(error, "generation"))
            return False
        self.steps += 1
        self._report(made)
        return True

    def _report(self, made: list[Progress]) -> None:
        if made:
            self.running -= {each.number for each in made if each.finish is not None}
            self.wire.send(Kind.PROGRESS, self.version, pack_progress(made))

    def _handle(self, message: Message) -> bool:
        """False after an error in what is not answered."""
        said = message.said
        numbered = isinstance(said, dict) and "call" in said
        where = Kind(message.kind).name.lower()
        try:
            answer = self._answer(message.kind, said, message.raw)
        except Exception as error:  # as in `work`
            self.wire.send(Kind.ERROR, {**told(error, where), **({"call": said["call"]} if numbered else {})})
            return numbered
        if numbered:
            self.wire.send(Kind.ANSWER, {"call": said["call"], "value": answer})
        return True

    def _answer(self, kind: int, said: Any, raw: bytes) -> Any:  # Any: plain values
        handlers: dict[int, Callable[[], Any]] = {
            Kind.ADD: lambda: self._add(said, raw),
            Kind.ABORT: lambda: self._report(self._abort(said["numbers"])),
            Kind.BEGIN: self._begin,
            Kind.BUCKET: lambda: self._load(said),
            Kind.FINISH: lambda: self._finish(said["weights"], said["digests"]),
            Kind.CALL: lambda: getattr(self._engine, said["method"])(),
        }
        return handlers[kind]()

    def _add(self, said: Any, raw: bytes) -> None:
        if self.version < 0:
            raise ModelError("requests came before a weight version was complete")
        jobs = unpack_jobs(raw)
        self._engine.add(jobs, Sampling(**said["sampling"]), stream=said["stream"])
        self.running |= {job.number for job in jobs}

    def _abort(self, numbers: list[int]) -> list[Progress]:
        known = [number for number in numbers if number in self.running]
        return self._engine.abort(known) if known else []

    def _begin(self) -> None:
        self._report(self._abort(sorted(self.running)))
        self.version = -1

    def _load(self, said: Any) -> None:
        places = tuple(Place(name, kind, tuple(shape), begin) for name, kind, shape, begin in said["places"])
        self._engine.load(Bucket(self.path, said["size"], places))

    def _finish(self, version: int, digests: dict[str, int]) -> int:
        """Returns how many weights were found installed as they were sent."""
        self.sent.update(digests)
        installed = self._engine.finish_update()
        found = [each for each in installed if all(name in self.sent for name in each.names)]
        wrong = [each for each in found if not self._fits(each)]
        wrong += self._rest(installed, found)
        if wrong:
            names = "; ".join(", ".join(each.names) for each in wrong[:3])
            raise ModelError(
                f"after the update to weight version {version}, {len(wrong)} of {len(found)} weights in the "
                f"engine are not those that were sent: {names}"
            )
        self.version = version
        return sum(len(each.names) for each in found)

    def _rest(self, installed: Sequence[Installed], found: Sequence[Installed]) -> list[Installed]:
        """Weights that go by other names in the engine, such as those of experts, are compared as a whole."""
        others = [each for each in installed if each not in found]
        told = {name for each in found for name in each.names}
        sent = [total for name, total in self.sent.items() if name not in told and not is_adapter(name)]
        if not others or any(each.copies > 1 for each in others):
            return []
        same = sum(each.digest for each in others) % WRAP == sum(sent) % WRAP
        return [] if same else others

    def _fits(self, found: Installed) -> bool:
        sent = sum(self.sent[name] for name in found.names)
        times = [copies for copies in range(1, found.copies + 1) if found.copies % copies == 0]
        return any(found.digest == sent * copies % WRAP for copies in times)


def serve(wire: Wire, memory: int) -> None:
    """Serve the proxy at the other end."""
    server = Server(wire, memory)
    threading.Thread(target=server.listen, daemon=True).start()
    server.work()


if __name__ == "__main__":
    run(sys.argv[1:], serve)
