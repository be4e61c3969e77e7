"""The inline engine: everything in the calling process and thread, for debuggers and tests."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from rlinf_core.api.engine import Call, Engine, Host, HostSpec, StageCall, WorkerSpec
from rlinf_core.api.spans import HostSpan
from rlinf_core.errors import ConfigError, RlinfError, WorkerError
from rlinf_core.worker import WorkerContext
from rlinf_core.worker.failures import StageCancelledError, raised
from rlinf_core.worker.table import WorkerTable
from rlinf_core.worker.turn import Turn

_MOST_UNREAD = 100_000  # spans kept for whoever asks; the oldest go first


class InlineCall(Call):
    """A call that has run already."""

    def __init__(self, value: Any = None, error: WorkerError | None = None, seconds: float = 0.0) -> None:
        self._value = value
        self._error = error
        self.seconds = seconds

    def result(self, timeout_s: float | None = None) -> Any:
        """The return value; the exception that the method raised is the error's cause."""
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        """Always."""
        return True


class InlineStageCall(StageCall):
    """A stage that runs while its output is iterated over."""

    def __init__(
        self, host: InlineHost, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.host = host
        self.worker = worker
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self._sent: list[list[Any]] = []
        self._source: Iterator[list[Any]] | None = None
        self._result: Any = None
        self._ended = False
        self._cancelled = False

    def feed(self, chunks: Iterator[list[Any]]) -> bool:
        """Pull the input from `chunks`."""
        self._source = chunks
        return True

    def send(self, chunk: list[Any]) -> None:
        """Keep a chunk until the stage runs."""
        self._sent.append(chunk)

    def close(self) -> None:
        """Nothing to do: what was sent before the iteration is the input."""

    def cancel(self) -> None:
        """End at the next output."""
        self._cancelled = not self._ended

    def __iter__(self) -> Iterator[list[Any]]:
        try:
            self._result = yield from self._run()
        except Exception as error:
            wrapped = raised(error, self.worker, self.method, self.host.table.resident)
            if wrapped is error:
                raise
            raise wrapped from error
        self._ended = True

    def _run(self) -> Generator[list[Any], None, Any]:
        turn = self.host.table.turn(self.worker, self.method)
        try:
            with turn:
                return (yield from self._outputs(turn))
        finally:
            self.host.keep(turn)

    def _outputs(self, turn: Turn) -> Generator[list[Any], None, Any]:
        source = self._source if self._source is not None else iter(self._sent)
        generator = self.host.table.stage(
            self.worker, self.method, _taken(source, turn), self.args, self.kwargs
        )
        try:
            while not self._cancelled:
                try:
                    chunk = turn.gave(next(generator))
                except StopIteration as end:
                    return end.value
                with turn.waiting():
                    yield chunk
        finally:
            generator.close()
        raise StageCancelledError(f"{self.worker}.{self.method} was cancelled")

    def result(self) -> Any:
        """What the stage returned."""
        if not self._ended:
            raise RlinfError(f"{self.worker}.{self.method} has not ended: iterate over its output first")
        return self._result


class Threads:
    """Intra-op threads of torch in this process: as many as a process of its own would have, because sums
    depend on it; given back at the end."""

    def __init__(self) -> None:
        self._wanted = 1
        self._had: int | None = None

    def want(self, specs: Iterable[HostSpec]) -> None:
        """All hosts share the process, so the largest number counts."""
        self._wanted = max([self._wanted, *(spec.threads for spec in specs)])

    def use(self) -> None:
        """After a worker was made, which may have imported torch."""
        torch = sys.modules.get("torch")
        if torch is not None:
            self._had = self._had or torch.get_num_threads()
            torch.set_num_threads(self._wanted)

    def give_back(self) -> None:
        """As before."""
        if self._had is not None:
            sys.modules["torch"].set_num_threads(self._had)
            self._had = None


class InlineHost(Host):
    """The calling process."""

    concurrent = False

    def __init__(self, name: str, threads: Threads) -> None:
        self.name = name
        self.table = WorkerTable()
        self._threads = threads
        self._spans: deque[HostSpan] = deque(maxlen=_MOST_UNREAD)

    def create(self, spec: WorkerSpec) -> Call:
        """Build a worker here and now; refuses one of several ranks."""
        context = spec.kwargs.get("context", WorkerContext())
        _refuse_ranks(f"worker {spec.name}", context.world_size)
        created = self._run(Turn(spec.name, "__init__"), lambda: self.table.create(spec))
        self._threads.use()
        return created

    def call(self, worker: str, method: str, *args: Any, **kwargs: Any) -> Call:
        """Call a method here and now."""
        turn = self.table.turn(worker, method)
        return self._run(turn, lambda: self.table.call(worker, method, args, kwargs))

    def stage(self, worker: str, method: str, *args: Any, **kwargs: Any) -> InlineStageCall:
        """A stage that runs when it is iterated over."""
        return InlineStageCall(self, worker, method, args, kwargs)

    def drop(self, worker: str) -> Call:
        """Close and forget a worker here and now."""
        return self._run(Turn(worker, "close"), lambda: self.table.drop(worker))

    def keep(self, turn: Turn) -> None:
        """Keep what was done in a turn for whoever asks."""
        self._spans.extend(HostSpan(self.name, span) for span in turn.log.spans)

    def drain_spans(self) -> list[HostSpan]:
        """What its workers did since the last time it was asked."""
        return [self._spans.popleft() for _ in range(len(self._spans))]

    def _run(self, turn: Turn, function: Callable[[], Any]) -> InlineCall:
        try:
            with turn:
                value = function()
        except Exception as error:
            wrapped = raised(error, turn.log.worker, turn.log.name, self.table.resident)
            if wrapped is not error:
                wrapped.__cause__ = error
            return InlineCall(error=wrapped)
        finally:
            self.keep(turn)
        return InlineCall(value, seconds=turn.seconds)


class InlineEngine(Engine):
    """Hosts are tables in this process. A group has one rank: nothing runs at the same time."""

    def __init__(self, config: Any) -> None:  # Any: it has no settings
        super().__init__(config)
        self._hosts: list[InlineHost] = []
        self._threads = Threads()

    def start(self, hosts: Iterable[HostSpec]) -> list[Host]:
        """One host for every spec; refuses more than one rank."""
        specs = list(hosts)
        for spec in specs:
            _refuse_ranks(f"host {spec.name}", int(spec.env.get("WORLD_SIZE", "1")))
        self._threads.want(specs)
        made = [InlineHost(spec.name, self._threads) for spec in specs]
        self._hosts += made
        return list(made)

    def drain_spans(self) -> list[HostSpan]:
        """What workers did since the last time it was asked, host by host."""
        return [span for host in self._hosts for span in host.drain_spans()]

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close all workers."""
        while self._hosts:
            self._hosts.pop().table.close()
        self._threads.give_back()


def _refuse_ranks(what: str, ranks: int) -> None:
    if ranks > 1:
        raise ConfigError(
            f"engine inline: {what} is one of {ranks} ranks, and this engine runs one rank; "
            "set ranks=1, or choose another engine"
        )


def _taken(source: Iterator[list[Any]], turn: Turn) -> Iterator[list[Any]]:
    """The chunks of `source`; what runs to make them is no work of this stage."""
    while True:
        with turn.waiting():
            chunk = next(source, None)
        if chunk is None:
            return
        yield turn.took(chunk)
