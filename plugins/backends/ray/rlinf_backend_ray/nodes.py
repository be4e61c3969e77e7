"""The nodes of a Ray cluster as rlinf counts their devices."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from rlinf_backend_ray.config import RayConfig
from rlinf_core.api.engine import EngineNode
from rlinf_core.errors import ConfigError

_ANSWER_S = 2.0
_MOST_THREADS = 4  # of one device; more rarely pay
_DEVICES_OF_A_CPU_NODE = 2


@dataclass(frozen=True)
class RayNode:
    """A node that is alive."""

    address: str
    cpus: int
    gpus: int = 0
    type: str = "cpu"
    memory_bytes: float = float("inf")
    group: str = ""

    def describe(self) -> str:
        """`10.0.0.1: 64 CPUs, 8 H100`."""
        gpus = f", {self.gpus} {self.type}" if self.gpus else ""
        return f"{self.address}: {self.cpus} CPUs{gpus}"


def living_nodes(here: str, group_label: str) -> list[RayNode]:
    """All nodes that answer: those with GPUs first, each type together, then that of the driver."""
    known = [node for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(min(32, max(1, len(known)))) as pool:
        answering = [node for node, there in zip(known, pool.map(_answers, known), strict=True) if there]
    nodes = [read_node(node, group_label) for node in answering]
    return sorted(nodes, key=lambda node: (not node.gpus, node.type, node.address != here, _order(node)))


def offered(nodes: Sequence[RayNode], config: RayConfig, ranks: int) -> list[EngineNode]:
    """What a run of so many devices may use of the nodes; 0 = what suits. Raises `ConfigError`."""
    most = _most(nodes, config, ranks)
    if ranks > sum(most) or not any(most):
        there = "; ".join(node.describe() for node in nodes) or "none"
        asked = f"ranks={ranks} devices are asked for" if ranks else "no device is there"
        raise ConfigError(
            f"engine ray: {asked}, and the nodes of the Ray cluster that answer give {sum(most)} ({there}); "
            f"set ranks={max(1, sum(most))} or fewer, start more nodes (`ray start --address=HEAD:PORT`), or "
            "count CPU nodes as more (engine.cpu_devices=N)"
        )
    taken = _shares(most, ranks or sum(most), fill=any(node.gpus for node in nodes))
    return [_offer(node, count) for node, count in zip(nodes, taken, strict=True) if count]


def read_node(node: dict[str, Any], group_label: str) -> RayNode:  # Any: as Ray tells it
    """From what `ray.nodes` says."""
    resources, labels = node["Resources"], node.get("Labels", {})
    prefix = "accelerator_type:"
    types = [name.removeprefix(prefix) for name in resources if name.startswith(prefix)]
    gpus = int(resources.get("GPU", 0))
    kind = labels.get("ray.io/accelerator-type") or (types[0] if types else "GPU")
    return RayNode(
        address=node["NodeManagerAddress"],
        cpus=int(resources.get("CPU", 0)),
        gpus=gpus,
        type=kind if gpus else "cpu",
        memory_bytes=float(resources.get("memory", 0.0)) or float("inf"),
        group=labels.get(group_label, ""),
    )


def _most(nodes: Sequence[RayNode], config: RayConfig, ranks: int) -> list[int]:
    """The devices of each node that a run may take."""
    if any(node.gpus for node in nodes):
        return [node.gpus or min(config.cpu_devices, node.cpus) for node in nodes]
    most = config.cpu_devices or ranks or _DEVICES_OF_A_CPU_NODE
    return [min(most, node.cpus) for node in nodes]


def _shares(most: Sequence[int], wanted: int, *, fill: bool) -> list[int]:
    """So many devices: node by node, or one of each node in turn."""
    taken = [0] * len(most)
    while sum(taken) < wanted:
        free = [number for number, count in enumerate(taken) if count < most[number]]
        for number in free[:1] if fill else free:
            taken[number] += sum(taken) < wanted
    return taken


def _offer(node: RayNode, devices: int) -> EngineNode:
    threads = max(1, min(_MOST_THREADS, node.cpus // devices))
    memory = float("inf") if node.gpus else node.memory_bytes / devices
    return EngineNode(node.address, devices, node.type, memory, threads, node.group)


def _answers(node: dict[str, Any]) -> bool:  # Any: as Ray tells it
    """Whether its raylet takes connections: the cluster notices only after a while that a node is gone."""
    with contextlib.suppress(OSError):
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _ANSWER_S).close()
        return True
    return False


def _order(node: RayNode) -> tuple[int, ...]:
    parts = node.address.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
