"""The execution-engine interface: where worker processes run and how they are called."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.api.spans import HostSpan
from rlinf_core.errors import WorkerDied


@dataclass(frozen=True)
class HostSpec:
    """One process. Workers that share devices live in one host and take turns there."""

    name: str  # "device0", "reward"
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1  # intra-op threads of this process
    cores: tuple[int, ...] = ()  # CPU cores it is pinned to; () = not pinned
    log: str = ""  # file that gets what the process prints; "" = the driver's terminal
    device: int | None = None  # of the cluster, which says where it runs; None = it works on no device


@dataclass(frozen=True)
class EngineNode:
    """A machine on which an engine starts hosts. Devices are numbered over its nodes, in their order."""

    name: str  # an address, as errors call it
    devices: int  # accelerators; on the CPU as many hosts as may run side by side
    type: str = "cpu"  # of every device here
    memory_bytes: float = float("inf")  # of one device
    threads: int = 1  # intra-op threads of the host of one device
    group: str = ""  # the node group that a placement may name


@dataclass(frozen=True)
class WorkerSpec:
    """One worker of a host: `target` is `module:Class`, built with `kwargs` (picklable)."""

    name: str  # "actor[0]"
    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Call(ABC):
    """A running call on one worker."""

    seconds: float = 0.0  # that the method ran; set once done

    @abstractmethod
    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the return value. Raises `WorkerError` with the worker's traceback, or when the
        worker died, or after `timeout_s`."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, well or not; never waits."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` and say whether the call is done; never raises its error."""
        end = time.monotonic() + timeout_s
        while not self.done() and time.monotonic() < end:
            time.sleep(0.0005)
        return self.done()


class StageCall(ABC):
    """A running stage: chunks go in by `send`, come out by iteration, as they are ready."""

    def feed(self, chunks: Iterator[list[Any]]) -> bool:
        """Let the stage pull its input itself, in the thread that iterates over its output. False:
        this engine's stages are sent their chunks."""
        return False

    def cancel(self) -> None:
        """Nobody wants the rest: end the stage at its next input or output. Its iteration then ends
        with an error. Callable from any thread, also after the end."""
        self.close()

    @abstractmethod
    def send(self, chunk: list[Any]) -> None:
        """Give the stage a chunk; blocks while it is behind (bounded by bytes)."""

    @abstractmethod
    def close(self) -> None:
        """No more chunks will come."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[Any]]: ...

    @abstractmethod
    def result(self) -> Any:
        """What the stage returned, after its last chunk was taken."""


class Host(ABC):
    """A handle to one process."""

    name: str
    concurrent: bool = True  # works while others do, and the driver
    device: str = ""  # what its process calls its device, "cuda:0"; "" = by its number, as on this machine

    def death(self) -> WorkerDied | None:
        """How its process ended; None while it is there, as far as is known."""
        return None

    def meeting_point(self) -> str:
        """`address:port` where ranks of a process group may meet, of which this one's is the first.
        "" = a port of this machine does."""
        return ""

    @abstractmethod
    def create(self, spec: WorkerSpec) -> Call:
        """Build a worker in the host."""

    @abstractmethod
    def call(self, worker: str, method: str, *args: Any, **kwargs: Any) -> Call:
        """Call a method; calls to one host run one after the other, in the order made."""

    @abstractmethod
    def stage(self, worker: str, method: str, *args: Any, **kwargs: Any) -> StageCall:
        """Start a stage method (a generator over an input iterator)."""

    @abstractmethod
    def drop(self, worker: str) -> Call:
        """Close and forget a worker, after the calls made before. Its name may be given anew."""


class Engine(ABC):
    """Starts and stops hosts. Constructed with its config dataclass, which costs nothing: what it needs of
    a cluster it asks for in `nodes` or `start`."""

    restarts: int = 0  # how often processes that are lost are started again: one, or all from a checkpoint

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    def nodes(self, ranks: int) -> Sequence[EngineNode]:
        """The machines that a run of so many devices may use; 0 = what suits. () = this machine, as it is.
        Raises `ConfigError` where there are fewer devices."""
        return ()

    @abstractmethod
    def start(self, hosts: Iterable[HostSpec]) -> list[Host]:
        """Start all hosts, in parallel."""

    def end(self, hosts: Sequence[Host]) -> bool:
        """End these, on which nobody works any more; their names may be given anew. False where this engine
        leaves them until `stop`."""
        return False

    def renew(self, host: Host) -> bool:
        """Start the process of a host again, which has no workers then; what is left of the former process
        is killed. False where this engine does not: the run then goes on from its last checkpoint. Other
        hosts work on meanwhile."""
        return False

    def channel(self, name: str) -> Any:  # Any: a picklable handle with `connect(worker)`
        """A new channel between workers of different hosts. Raises `ConfigError` where there are none."""
        from rlinf_core.errors import ConfigError

        raise ConfigError(
            f"engine {type(self).__name__} has no channels between hosts, so all workers must share their "
            "devices; set mode=collocated, or choose another engine"
        )

    def drain_spans(self) -> list[HostSpan]:
        """What workers did since the last time it was asked: complete for every call and stage that has
        ended. Empty where an engine does not tell."""
        return []

    @abstractmethod
    def stop(self, timeout_s: float = 2.0) -> None:
        """End every host; kill those that do not end in time. Safe to call twice."""
