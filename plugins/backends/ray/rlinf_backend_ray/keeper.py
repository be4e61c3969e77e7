"""What runs on a node for one host process: an actor that starts it there and stays beside it."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import ray

from rlinf_core.api.engine import HostSpec
from rlinf_core.comm.network import interface_of
from rlinf_core.errors import ConfigError
from rlinf_core.hosting import ChildProcess, Ticket

_LOOK_S = 0.05


@dataclass(frozen=True)
class Order:
    """What a keeper is to start."""

    spec: HostSpec
    ticket: Ticket
    folder: str  # of the driver; the process works there too, where the node has it
    versions: str  # of the driver, which those of the node have to equal
    buffer_bytes: int
    silence_s: float


@dataclass(frozen=True)
class Launched:
    """What a keeper has started."""

    pid: int
    node: str
    device: str  # what the process calls its device; "" = it has no accelerator


@dataclass(frozen=True)
class Ending:
    """How a process ended, and what it printed last."""

    how: str
    tail: str


class Keeper:
    """Lives as long as the driver wants. The process ends with it, and it takes all of the process's
    children when it ends."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None

    def launch(self, order: Order) -> Launched:
        """Start the process, which reports to the driver. Raises `ConfigError` or `OSError`."""
        if versions() != order.versions:
            raise ConfigError(
                f"node {_node()} has {versions()}, the driver has {order.versions}; install the same on all"
            )
        if Path(order.folder).is_dir():
            os.chdir(order.folder)
        sock = order.ticket.enter(order.spec.name, order.silence_s)
        spec = replace(order.spec, env={**_environment(), **order.spec.env})
        self._process = ChildProcess(spec, sock, order.buffer_bytes, silence_s=order.silence_s)
        return Launched(self._process.pid, _node(), "cuda:0" if ray.get_gpu_ids() else "")

    def watch(self) -> None:
        """Return when the process has ended."""
        while not self._child().ended():
            time.sleep(_LOOK_S)

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self._child().ask_to_end()

    def finish(self) -> Ending:
        """Kill what is left, and tell how it ended."""
        how = self._child().finish()
        return Ending(how, self._child().tail())

    def meeting_point(self) -> str:
        """An address of this node and a port that nobody listens on now."""
        with socket.socket() as probe:
            probe.bind((_node(), 0))
            return f"{_node()}:{probe.getsockname()[1]}"

    def _child(self) -> ChildProcess:
        if self._process is None:
            raise ConfigError("this keeper has launched nothing")
        return self._process


def versions() -> str:
    """What has to be the same on all nodes."""
    return f"rlinf-core {version('rlinf-core')} on Python {sys.version_info[0]}.{sys.version_info[1]}"


def _node() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _environment() -> dict[str, str]:
    """Paths without those of Ray itself, and the interface by which process groups reach other nodes."""
    own = os.path.dirname(ray.__file__)
    paths = [os.path.abspath(path) for path in sys.path if not path.startswith(own)]
    found = {"PYTHONPATH": os.pathsep.join(paths)}
    interface = interface_of(_node())
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if interface and name not in os.environ:
            found[name] = interface
    return found
