"""The base class of workers, what they are told of themselves, and the mark of stage methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rlinf_core.api.engine import WorkerSpec
from rlinf_core.errors import ConfigError

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
    peers: Mapping[str, Worker] = field(default_factory=dict)


class Worker:
    """One rank of a component. Subclasses take further keyword arguments after the context."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def close(self) -> None:
        """Free what the worker holds; called once, when its process ends in order."""


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


def build_worker(spec: WorkerSpec, peers: Mapping[str, Worker]) -> Worker:
    """Import the target and build it, in the process where it will live.

    `spec.kwargs["context"]` is the worker's context; `peers` becomes part of it.
    """
    module_name, _, class_name = spec.target.partition(":")
    target = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(target, type) and issubclass(target, Worker)):
        raise ConfigError(
            f"worker {spec.name}: {spec.target!r} is not a subclass of rlinf_core.worker.Worker; "
            "give the target as 'module:Class'"
        )
    kwargs = dict(spec.kwargs)
    context: WorkerContext = kwargs.pop("context", WorkerContext(name=spec.name))
    return target(replace(context, peers=peers), **kwargs)


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
