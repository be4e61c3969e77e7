"""The connection to a Ray cluster, or to a Ray that this run starts for itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.runtime_env import RuntimeEnv
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rlinf_backend_ray.config import RayConfig
from rlinf_core.errors import ConfigError

_OBJECT_STORE_BYTES = 100 * 2**20  # of a Ray of our own: tensors do not pass through it
_SETTINGS, _FRAME_HEAD = 4, 9  # the type of a frame of HTTP/2, and the bytes before its content
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_AUTOSCALER = b"/ray/autoscaler/_private/monitor.py"
_LATE = "timed out during startup"  # in what Ray says after half a minute on a machine that is busy
_RAYS = (b"/ray/", b"ray::")  # in the command lines of its processes
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayCluster:
    """Joined on construction; `close` leaves it, and ends a Ray that was started here."""

    def __init__(self, config: RayConfig, cpus: int) -> None:
        self._was_here = ray.is_initialized()
        address = address_of(config)
        check_runtime_env(config.runtime_env)
        if not self._was_here:
            if address:
                _join(address, config)
            else:
                _start(cpus, config)
        self.own = not (address or self._was_here)
        self.runtime_env = dict(config.runtime_env) if self._was_here else {}  # otherwise all have it
        self.node_id = str(ray.get_runtime_context().get_node_id())
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        self.here = str(nodes[self.node_id]["NodeManagerAddress"])
        self.reach = "" if self.own else self.here  # where processes of other nodes find the driver

    def reserve(self, bundles: Sequence[Mapping[str, float]], timeout_s: float) -> PlacementGroup:
        """All of these resources at once. Raises `ConfigError` where the cluster does not give them in
        time."""
        group: PlacementGroup = placement_group([dict(bundle) for bundle in bundles], strategy="PACK")
        if group.wait(timeout_s):
            return group
        remove_placement_group(group)
        raise ConfigError(
            f"engine ray: the cluster has not given {_told(_sum(bundles))} within {timeout_s:g} s; it has "
            f"{_told(ray.cluster_resources())}, of which {_told(ray.available_resources())} are free. Wait "
            "for other jobs to end, start more nodes, set ranks to fewer devices, or wait for longer "
            "(engine.start_timeout_s)"
        )

    def close(self) -> None:
        """Leave; no effect on a connection that others had made."""
        started = _own_processes() if self.own else []
        _kill([pid for pid, line in started if _AUTOSCALER in line])  # it has nothing to scale
        if not self._was_here:
            ray.shutdown()
        _kill([pid for pid, _ in started])


def check_runtime_env(told: Mapping[str, Any]) -> None:  # Any: as Ray documents it
    """Raises `ConfigError` for what Ray does not know or cannot use."""
    known = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
    unknown = sorted(set(told) - set(known))
    if unknown:
        raise ConfigError(
            f"engine ray: engine.runtime_env has {', '.join(unknown)}, which Ray does not know; it knows "
            f"{', '.join(known)}"
        )
    try:
        RuntimeEnv(**told)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"engine ray: engine.runtime_env cannot be used: {error}") from error


def is_running(config: RayConfig) -> bool:
    """Whether there is a cluster to join; otherwise the run starts a Ray of its own."""
    return bool(address_of(config) or ray.is_initialized())


def address_of(config: RayConfig) -> str:
    """The cluster to join; "" = none, but a Ray of the run's own."""
    return config.address or os.environ.get("RAY_ADDRESS", "")


def _join(address: str, config: RayConfig) -> None:
    if address != "auto":
        reach(address, config.connect_timeout_s)
    try:
        ray.init(address=address, **_options(config))
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        told = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConfigError(
            f"engine ray: the cluster at {address} cannot be joined: {told[0]}. The run has to start on a "
            f"node of it: `ray start --address={address}` makes this machine one, and `ray job submit -- "
            "rlinf train ...` starts it on the head node"
        ) from error


def _start(cpus: int, config: RayConfig) -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    end = time.monotonic() + config.start_timeout_s
    while not _has_started(cpus, config, end):
        continue


def _has_started(cpus: int, config: RayConfig, end: float) -> bool:
    """False where Ray's own patience was too short, and there is time left. Raises `ConfigError`."""
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            **_options(config),
        )
        return True
    except Exception as error:  # the border of Ray, which raises what it likes
        _kill([pid for pid, _ in _own_processes()])
        if _LATE in str(error) and time.monotonic() < end:
            return False
        raise ConfigError(f"engine ray: no Ray could be started on this machine: {error}") from error


def _own_processes() -> list[tuple[int, bytes]]:
    """Those of our own Ray, some of which take seconds to end when it does, with their command lines."""
    found, parents = [], {os.getpid()}
    processes = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for pid in processes:  # parents are older than their children
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
            if parent in parents:
                parents.add(pid)
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                found += [(pid, line)] if any(name in line for name in _RAYS) else []
    return found


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _options(config: RayConfig) -> dict[str, Any]:  # Any: arguments of `ray.init`
    return {"runtime_env": dict(config.runtime_env) or None, "logging_level": "error", "log_to_driver": True}


def reach(address: str, timeout_s: float) -> None:
    """Raises `ConfigError` where no Ray answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout_s) as sock:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _greet(sock)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"engine ray: no Ray answers at {address} within {timeout_s:g} s ({error}); start a cluster with "
            f"`ray start --head --port={port}` there, correct engine.address (or RAY_ADDRESS), or leave both "
            "out for a Ray on this machine alone"
        ) from error


def _greet(sock: socket.socket) -> None:
    """Say hello as HTTP/2 clients do; servers answer with their settings. Raises `OSError`."""
    sock.sendall(_HELLO)
    answer = b""
    while len(answer) < _FRAME_HEAD:
        more = sock.recv(_FRAME_HEAD - len(answer))
        if not more:
            raise ConnectionError("it hung up")
        answer += more
    if answer[3] != _SETTINGS:
        raise ConnectionError("what listens there speaks another protocol")


def _sum(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for bundle in bundles for name in bundle})
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def _told(resources: Mapping[str, float]) -> str:
    """`4 CPU, 2 GPU on 10.0.0.1 and 10.0.0.2`."""
    counted = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if name in resources]
    nodes = [name.removeprefix("node:") for name in sorted(resources) if name.startswith("node:")]
    named = " and ".join(name for name in nodes if not name.startswith("__"))
    return ", ".join(counted or ["nothing"]) + (f" on {named}" if named else "")
