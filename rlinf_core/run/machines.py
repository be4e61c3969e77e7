"""The machines that a run may use: those that its engine tells of, or else this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf_core.api.engine import EngineNode
from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.devices import default_ranks, inventory
from rlinf_core.cluster.files import cores_of, local_cluster
from rlinf_core.roles.setup import build

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.config.schema import RunConfig


@dataclass(frozen=True)
class Machines:
    """Devices, and how the process of each of them works."""

    cluster: Cluster
    threads: tuple[int, ...]  # of each device's process
    cores: tuple[tuple[int, ...], ...]  # that it is pinned to; () = not pinned

    @property
    def hardware(self) -> str:
        """What a profile depends on."""
        kinds = ", ".join(sorted(self.cluster.types))
        nodes = f", {len(self.cluster.nodes)} nodes" if len(self.cluster.nodes) > 1 else ""
        return f"{kinds}, {' or '.join(map(str, sorted(set(self.threads))))} threads a device{nodes}"

    @property
    def alike(self) -> int:
        """How many devices are of the type of the first: those that a run takes where nothing is said."""
        return self.cluster.count(self.cluster.types[0])


def find_machines(config: RunConfig, engine: Engine | None = None) -> Machines:
    """What the engine offers, or this machine where it offers none. Raises `ConfigError`."""
    nodes = engine.nodes(config.ranks) if engine is not None else ()
    return _of_nodes(nodes) if nodes else _this_machine(config)


def find_cluster(config: RunConfig) -> Cluster:
    """The devices of a run that is not started. Raises `ConfigError`."""
    engine: Engine = build(config.engine)
    try:
        return find_machines(config, engine).cluster
    finally:
        engine.stop()


def ranks_and_threads(config: RunConfig) -> tuple[int, int]:
    """Devices of this machine and threads a device: as configured, else what suits it."""
    machine = inventory()
    ranks, threads = default_ranks(machine)
    if config.ranks:
        ranks, threads = config.ranks, max(1, min(4, len(machine.cores) // config.ranks))
    return ranks, threads


def _this_machine(config: RunConfig) -> Machines:
    machine = inventory()
    ranks, threads = ranks_and_threads(config)
    cores = tuple(cores_of(machine, ranks, number) for number in range(ranks))
    return Machines(local_cluster(machine, ranks), (threads,) * ranks, cores)


def _of_nodes(nodes: Sequence[EngineNode]) -> Machines:
    found = tuple(Node(node.devices, node.type, node.memory_bytes, node.group) for node in nodes)
    threads = tuple(node.threads for node in nodes for _ in range(node.devices))
    return Machines(Cluster(found), threads, ((),) * len(threads))
