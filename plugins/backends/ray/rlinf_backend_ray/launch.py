"""Keepers in their places: one actor a host, in the bundles of a placement group or beside the driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RuntimeEnvSetupError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlinf_backend_ray.cluster import RayCluster
from rlinf_backend_ray.keeper import Keeper, Launched, Order
from rlinf_backend_ray.process import own_error, reason
from rlinf_core.api.engine import EngineNode, HostSpec
from rlinf_core.cluster.devices import inventory
from rlinf_core.errors import ConfigError, WorkerDied, WorkerError

_THREADS = 8  # of a keeper: one watches, the others answer
_PINNED = 0.001  # of the resource that every node has by its address, which says where a bundle lies


class KeeperSet:
    """All keepers of a run, and what they have reserved."""

    def __init__(self, cluster: RayCluster, nodes: Sequence[EngineNode]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._groups: list[PlacementGroup] = []
        self._keepers: list[Any] = []  # Any: handles of actors

    def launch(
        self, orders: Sequence[Order], timeout_s: float
    ) -> Iterator[tuple[Any, Launched, HostSpec]]:  # Any: an actor's handle
        """Start all processes at once; each is told when it has started. Raises `ConfigError` where the
        cluster lacks what they need, `WorkerError` where one does not start."""
        end = time.monotonic() + timeout_s
        specs = [order.spec for order in orders]
        keepers = self._place(specs, timeout_s)
        references = [keeper.launch.remote(order) for keeper, order in zip(keepers, orders, strict=True)]
        for spec, keeper, reference in zip(specs, keepers, references, strict=True):
            yield keeper, _launched(spec, reference, max(1.0, end - time.monotonic()), timeout_s), spec

    def close(self) -> None:
        """Let go of everything; processes that still run end with their keepers."""
        if ray.is_initialized():
            for keeper in self._keepers:
                with contextlib.suppress(RayError, ValueError):  # it is gone already
                    ray.kill(keeper)
            for group in self._groups:
                remove_placement_group(group)
        self._keepers, self._groups = [], []

    def _place(self, specs: Sequence[HostSpec], timeout_s: float) -> list[Any]:
        bundles = [self._bundle(spec) for spec in specs if spec.device is not None]
        group = self._cluster.reserve(bundles, timeout_s) if bundles else None
        if group is not None:
            self._groups.append(group)
        beside = NodeAffinitySchedulingStrategy(self._cluster.node_id, soft=False)
        keepers, number = [], 0
        for spec in specs:
            strategy: Any = beside  # Any: of several kinds
            # Without any resource Ray asks a random node first, perhaps one that was lost just now.
            resources = {f"node:{self._cluster.here}": _PINNED}
            if spec.device is not None and group is not None:
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
                resources = bundles[number]
                number += 1
            keepers.append(self._keeper(strategy, resources))
        self._keepers += keepers
        return keepers

    def _keeper(self, strategy: Any, resources: dict[str, float]) -> Any:
        return (
            ray.remote(Keeper)
            .options(
                num_cpus=resources.get("CPU", 0.0),
                num_gpus=resources.get("GPU", 0.0),
                resources={name: count for name, count in resources.items() if name.startswith("node:")},
                max_concurrency=_THREADS,
                scheduling_strategy=strategy,
                runtime_env=self._cluster.runtime_env or None,
            )
            .remote()
        )

    def _bundle(self, spec: HostSpec) -> dict[str, float]:
        """What the host of a device takes of the cluster, and where."""
        if not self._nodes:
            return {"CPU": 1.0} | ({"GPU": 1.0} if inventory().cuda_devices else {})
        node = _node_of(self._nodes, spec)
        return {"CPU": 1.0, f"node:{node.name}": _PINNED} | ({"GPU": 1.0} if node.type != "cpu" else {})


def _node_of(nodes: Sequence[EngineNode], spec: HostSpec) -> EngineNode:
    left = spec.device or 0
    for node in nodes:
        if left < node.devices:
            return node
        left -= node.devices
    there = sum(node.devices for node in nodes)
    raise ConfigError(
        f"engine ray: process {spec.name} asks for device {spec.device}; the cluster gave this run {there}"
    )


def _launched(spec: HostSpec, reference: Any, left_s: float, timeout_s: float) -> Launched:
    try:
        launched: Launched = ray.get(reference, timeout=left_s)
        return launched
    except GetTimeoutError as error:
        raise WorkerError(
            f"engine ray: process {spec.name} has not started within {timeout_s:g} s; a larger "
            "engine.start_timeout_s allows more",
            worker=spec.name,
        ) from error
    except RuntimeEnvSetupError as error:
        raise ConfigError(
            f"engine ray: engine.runtime_env could not be set up for process {spec.name}: {reason(error)}"
        ) from error
    except RayError as error:
        own = own_error(error)
        if own is not None:
            raise own from error
        raise WorkerDied(
            f"engine ray: process {spec.name} could not be started: {reason(error)}. Every node needs the "
            "same packages as the driver, or engine.runtime_env, which brings them",
            worker=spec.name,
        ) from error
