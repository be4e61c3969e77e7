"""Worker groups: all ranks of one component, called together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rlinf_core.api.engine import Call, Host, StageCall, WorkerSpec
from rlinf_core.comm.stream import Stream
from rlinf_core.errors import ConfigError, WorkerError
from rlinf_core.worker.failures import GRACE_S, first_real, is_consequence
from rlinf_core.worker.healed import HealedCall, Healer
from rlinf_core.worker.stage_run import ROUTES, Route, run_stage
from rlinf_core.worker.worker import WorkerContext

_LOOK_AROUND_S = 0.02  # how often the other ranks are looked at while one is waited for


class GroupCall:
    """One method running on every rank of a group."""

    def __init__(self, names: Sequence[str], method: str, calls: Sequence[Call]) -> None:
        self.names = names
        self.method = method
        self.calls = calls

    @property
    def durations(self) -> list[float]:
        """Seconds that the method ran on each rank; 0 where it has not ended."""
        return [call.seconds for call in self.calls]

    def done(self) -> bool:
        """Whether every rank has ended."""
        return all(call.done() for call in self.calls)

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """Every rank's return value. Raises as soon as one rank has failed: the first real error,
        not that of the ranks which waited for the failed one inside a collective."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        errors: list[BaseException] = []
        patience = float("inf")
        pending = set(range(len(self.calls)))
        while pending:
            self.calls[min(pending)].wait(_LOOK_AROUND_S)
            for rank in [rank for rank in pending if self.calls[rank].done()]:
                pending.discard(rank)
                errors += _error(self.calls[rank])
            if errors:
                patience = min(patience, time.monotonic() + GRACE_S)
                if not is_consequence(first_real(errors)) or time.monotonic() > patience:
                    break
            if end is not None and time.monotonic() > end:
                raise self._late(pending, timeout_s)
        if errors:
            raise first_real(errors)
        return [call.result() for call in self.calls]

    def guard(self, stream: Stream) -> Stream:
        """The stream of a stage that needs this call to go on: where both fail, this call's error is
        raised, unless it is the echo of the stage's."""
        return Stream(self._guarded(stream), result=lambda: stream.result, cancel=stream.cancel)

    def _guarded(self, stream: Stream) -> Iterator[list[Any]]:
        try:
            yield from stream
        except GeneratorExit:
            raise
        except BaseException as error:
            end = time.monotonic() + GRACE_S
            while not self.done() and time.monotonic() < end:
                time.sleep(_LOOK_AROUND_S)
            real = first_real([*self._errors(), error])
            if real is error:
                raise
            raise real from real.__cause__

    def _errors(self) -> list[BaseException]:
        return [error for call in self.calls if call.done() for error in _error(call)]

    def _late(self, pending: set[int], timeout_s: float | None) -> WorkerError:
        names = ", ".join(self.names[rank] for rank in sorted(pending))
        return WorkerError(
            f"{names}: {self.method} has not ended within {timeout_s:g} s", worker=self.names[min(pending)]
        )


class WorkerGroup:
    """The ranks of one component, in rank order; each member is a host and the worker's name there."""

    def __init__(
        self, name: str, members: Sequence[tuple[Host, str]], specs: Sequence[WorkerSpec] = ()
    ) -> None:
        if not members:
            raise ConfigError(f"worker group {name!r} has no members; give it at least one host")
        self.name = name
        self.members = list(members)
        self.specs = list(specs)  # what each rank was built from
        self.healer: Healer | None = None  # of ranks whose processes are lost while a stage runs
        self.intake: Callable[[Stream], Stream] = _as_it_comes

    @classmethod
    def create(
        cls,
        name: str,
        target: str,
        hosts: Sequence[Host],
        kwargs: Mapping[str, Any],
        devices: Sequence[str],
        seed: int,
        per_rank_kwargs: Sequence[Mapping[str, Any]] | None = None,
        master: str = "",
        resident: bool = True,
    ) -> WorkerGroup:
        """Build `target` (`module:Class`) on every host, in parallel; rank = position of the host.

        `master` (`host:port`) is where ranks that form a process group meet; ranks that are not `resident`
        leave the device to others when it is their turn.
        """
        size = len(hosts)
        own = per_rank_kwargs if per_rank_kwargs is not None else [{}] * size
        if not size == len(devices) == len(own):
            raise ConfigError(
                f"worker group {name!r}: {size} hosts, {len(devices)} devices and {len(own)} "
                "sets of rank arguments; give one of each a rank"
            )
        names = [f"{name}[{rank}]" for rank in range(size)]
        specs = []
        for rank in range(size):
            context = WorkerContext(names[rank], rank, size, devices[rank], seed, master, resident=resident)
            specs.append(WorkerSpec(names[rank], target, {**kwargs, **own[rank], "context": context}))
        calls = [host.create(spec) for host, spec in zip(hosts, specs, strict=True)]
        GroupCall(names, "__init__", calls).wait()
        return cls(name, list(zip(hosts, names, strict=True)), specs)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    def put(self, members: Sequence[tuple[Host, str]], specs: Sequence[WorkerSpec]) -> None:
        """The group grows, shrinks or moves: it has these ranks from now on, which are there already."""
        self.members[:] = members
        self.specs[:] = specs

    def renew(self, ranks: Sequence[int]) -> None:
        """Build the workers of these ranks again, in processes that have lost them."""
        calls = [self.members[rank][0].create(self.specs[rank]) for rank in ranks]
        GroupCall([self.members[rank][1] for rank in ranks], "__init__", calls).wait()

    def drop(self) -> GroupCall:
        """Close and forget every rank."""
        calls = [host.drop(worker) for host, worker in self.members]
        return GroupCall([worker for _, worker in self.members], "drop", calls)

    def call(self, method: str, *args: Any, **kwargs: Any) -> GroupCall:
        """Call the method on every rank."""
        calls = [host.call(worker, method, *args, **kwargs) for host, worker in self.members]
        return GroupCall([worker for _, worker in self.members], method, calls)

    def call_rank(self, rank: int, method: str, *args: Any, **kwargs: Any) -> Call:
        """Call the method on one rank."""
        host, worker = self.members[rank]
        return host.call(worker, method, *args, **kwargs)

    def stage(
        self,
        method: str,
        stream: Stream,
        *,
        route: Route = "spread",
        weight: Callable[[list[Any]], float] = len,
        **kwargs: Any,
    ) -> Stream:
        """Run a stage on every rank over the stream; its output chunks come as they are ready.

        `spread` gives each chunk to the rank with the least total weight so far, `broadcast` gives
        every chunk to every rank, `shared` gives the heaviest of those that are there to whichever rank asks
        for one, by yielding a chunk (an empty one before its first). Chunks pass `intake` first, which may
        hold and regroup them.
        """
        if route not in ROUTES:
            raise ConfigError(f"{self.name}.{method}: no route {route!r}; there are {', '.join(ROUTES)}")
        begin = [partial(host.stage, worker, method, **kwargs) for host, worker in self.members]
        if self.healer is None:
            calls: list[StageCall] = [each() for each in begin]
        else:
            hosts = [host for host, _ in self.members]
            calls = [HealedCall(*each, self.healer) for each in zip(hosts, begin, strict=True)]
        return run_stage(calls, self.intake(stream), route, weight)


def _as_it_comes(stream: Stream) -> Stream:
    return stream


def _error(call: Call) -> list[BaseException]:
    try:
        call.result()
    except WorkerError as error:
        return [error]
    return []
