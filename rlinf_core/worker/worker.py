"""The base class of workers, what they are told of themselves, and the mark of stage methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf_core.api.engine import WorkerSpec
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.worker.lease import DeviceLease

Method = TypeVar("Method", bound=Callable[..., Any])
StageMethod = TypeVar("StageMethod", bound=Callable[..., Iterator[list[Any]]])


@dataclass(frozen=True)
class WorkerContext:
    """Who a worker is and who its neighbours are.

    `peers` maps the names of all workers of the same process to the workers themselves, this one
    included once it is built, so that collocated workers share memory by reference.
    """

    name: str = "worker[0]"
    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    seed: int = 0
    master: str = ""  # `host:port` where the ranks of this group meet; "" = in a world of one
    peers: Mapping[str, Worker] = field(default_factory=dict)
    resident: bool = True  # stays in device memory while others use the device
    reach: str = ""  # an address of this machine that other machines know; "" = none is known
    lease: DeviceLease | None = None  # of the worker's process

    def rendezvous(self) -> dict[str, str]:
        """The environment variables by which process groups find this rank and the others."""
        address, _, port = self.master.rpartition(":")
        found = {"RANK": str(self.rank), "LOCAL_RANK": str(self.rank), "WORLD_SIZE": str(self.world_size)}
        return found | ({"MASTER_ADDR": address, "MASTER_PORT": port} if port else {})


class Worker:
    """One rank of a component. Subclasses take further keyword arguments after the context."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def renumber(self, rank: int, size: int) -> None:
        """Be this rank of so many from now on: the group has grown or shrunk around it."""
        self.context = replace(self.context, rank=rank, world_size=size)

    def onload(self) -> None:
        """Bring what the worker needs onto the device. Called before its turn, after `offload`, where it
        is not resident."""

    def offload(self) -> None:
        """Free the device for others, keeping everything. Called when another's turn comes."""

    def memory_bytes(self) -> float:
        """What the worker holds on its device while it is there; 0 = next to nothing, or unknown."""
        return 0.0

    def beside(self, *peers: str) -> AbstractContextManager[None]:
        """Within the block these workers of the same process are on the device too.

        with self.beside("actor[0]"):
            weights = self.context.peers["actor[0]"].weights()
        """
        return nullcontext() if self.context.lease is None else self.context.lease.joined(*peers)

    def set_resident(self, resident: bool) -> None:
        """Whether the worker stays on the device, from now on, while others use it."""
        if self.context.lease is not None:
            change = self.context.lease.keep if resident else self.context.lease.lend
            change(self.context.name)

    def close(self) -> None:
        """Free what the worker holds; called once, when it is dropped or its process ends in order."""


def on_host(method: Method) -> Method:
    """Mark a method that does not touch the device: it runs wherever the worker's memory is.

    @on_host
    def spaces(self) -> Spaces:
        return self.found
    """
    method.__rlinf_on_host__ = True  # type: ignore[attr-defined]
    return method


def stage(method: StageMethod) -> StageMethod:
    """Mark a generator method that takes an iterator of chunks and yields chunks.

    What the generator returns is the stage's result.

        @stage
        def double(self, chunks: Iterator[list[int]]) -> Iterator[list[int]]:
            for chunk in chunks:
                yield [2 * item for item in chunk]
    """
    method.__rlinf_stage__ = True  # type: ignore[attr-defined]
    return method


def build_worker(spec: WorkerSpec, context: WorkerContext) -> Worker:
    """Import the target and build it with this context, in the process where it will live."""
    module_name, _, class_name = spec.target.partition(":")
    target = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(target, type) and issubclass(target, Worker)):
        raise ConfigError(
            f"worker {spec.name}: {spec.target!r} is not a subclass of rlinf_core.worker.Worker; "
            "give the target as 'module:Class'"
        )
    return target(**{**spec.kwargs, "context": context})


def start_stage(
    worker: Worker, method: str, chunks: Iterator[list[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[list[Any], None, Any]:
    """The generator of a stage method; refuses methods that are not marked `@stage`."""
    function = getattr(worker, method, None)
    if not getattr(function, "__rlinf_stage__", False):
        kind = type(worker)
        marked = [name for name in dir(kind) if hasattr(getattr(kind, name), "__rlinf_stage__")]
        raise ConfigError(
            f"worker {worker.context.name} has no stage {method!r}; "
            f"methods marked @stage: {', '.join(marked) or 'none'}"
        )
    made: Generator[list[Any], None, Any] = function(chunks, *args, **kwargs)  # type: ignore[misc]
    return made
