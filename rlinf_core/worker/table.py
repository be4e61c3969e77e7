"""The workers of one process, by name: what every engine runs calls and stages on."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlinf_core.api.engine import WorkerSpec
from rlinf_core.errors import ConfigError
from rlinf_core.worker.lease import DeviceLease
from rlinf_core.worker.memory import resident
from rlinf_core.worker.turn import Turn
from rlinf_core.worker.worker import Worker, WorkerContext, build_worker, start_stage


class WorkerTable:
    """Builds, finds and closes workers; they see one another as `context.peers`."""

    def __init__(self, reach: str = "") -> None:
        self._reach = reach
        self._workers: dict[str, Worker] = {}
        self.lease = DeviceLease(self._workers)

    def turn(self, worker: str, method: str) -> Turn:
        """The turn in which a call or a stage of the worker runs."""
        found = self._workers.get(worker)
        on_host = found is None or getattr(getattr(found, method, None), "__rlinf_on_host__", False)
        return Turn(worker, method, None if on_host else self.lease)

    def create(self, spec: WorkerSpec) -> None:
        """Build a worker and enter it under its name; others make room for one that is not resident."""
        if spec.name in self._workers:
            raise ConfigError(f"this process already has a worker named {spec.name!r}")
        context: WorkerContext = spec.kwargs.get("context", WorkerContext(name=spec.name))
        if not context.resident:
            self.lease.lend(spec.name)
        context = replace(context, peers=self._workers, lease=self.lease, reach=self._reach)
        try:
            with self.lease.turn(spec.name):
                self._workers[spec.name] = build_worker(spec, context)
        except BaseException:
            self.lease.forget(spec.name)
            raise
        gc.freeze()  # modules and workers live on: a full collection that looks at them takes 0.1 s

    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a method. Any: what it returns."""
        found = self._find(worker)
        function = getattr(found, method, None)
        if not callable(function):
            raise ConfigError(f"worker {worker} ({type(found).__name__}) has no method {method!r}")
        return function(*args, **kwargs)

    def stage(
        self,
        worker: str,
        method: str,
        chunks: Iterator[list[Any]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Generator[list[Any], None, Any]:
        """The generator of a stage method over `chunks`."""
        return start_stage(self._find(worker), method, chunks, args, kwargs)

    def drop(self, worker: str) -> None:
        """Close and forget a worker, also if it fails to close; what it held is freed."""
        found = self._find(worker)
        del self._workers[worker]
        self.lease.forget(worker)
        try:
            found.close()
        finally:
            del found
            gc.unfreeze()
            gc.collect()  # models and optimizers refer to themselves
            gc.freeze()

    def resident(self) -> str:
        """What they hold, and the process itself, in words."""
        return resident(self._workers)

    def close(self) -> bool:
        """Close all workers, the last made first; False if one raised (its traceback is printed)."""
        good = True
        while self._workers:
            name, worker = self._workers.popitem()
            try:
                worker.close()
            except Exception:  # the border of a worker: the others must be closed too
                print(f"worker {name} failed to close:", file=sys.stderr)
                traceback.print_exc()
                good = False
        return good

    def _find(self, worker: str) -> Worker:
        if worker not in self._workers:
            known = ", ".join(self._workers) or "none"
            raise ConfigError(f"no worker {worker!r} in this process; there are: {known}")
        return self._workers[worker]
