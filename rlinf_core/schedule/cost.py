"""What a component costs on so many devices: seconds, bytes, switches, transfers and weight copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from rlinf_core.cluster.cluster import Cluster
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Component, Graph
from rlinf_core.schedule.profile import MemoryUse, Profile

GRAIN = 1024  # memory is counted in such parts of a device, rounded up


class CostModel:
    """Costs of one graph on one cluster, from one profile.

    Times are those of the slowest rank over all samples that a call names; memory is that of one device.
    """

    def __init__(self, graph: Graph, profile: Profile, cluster: Cluster) -> None:
        self.graph = graph
        self.profile = profile
        self.cluster = cluster
        self.seconds = cache(self._seconds)
        self.count = cache(cluster.count)
        self.memory_of = cache(cluster.memory_of)

    def _seconds(
        self,
        component: str,
        device_type: str,
        devices: int,
        samples: int,
        chunk: int = 0,
        model_parallel: int = 1,
    ) -> float:
        """Time for `samples`, `chunk` of them in one call on one rank (0 = all in one)."""
        curve = self.profile.curve(component, device_type)
        return curve.seconds(samples, devices, chunk, model_parallel)

    def types_of(self, components: Sequence[Component]) -> tuple[str, ...]:
        """The cluster's device types on which the times of all these are known."""
        known = [set(self.profile.device_types(part.name)) for part in components]
        return tuple(kind for kind in self.cluster.types if all(kind in one for one in known))

    def require(self, components: Sequence[Component]) -> None:
        """Raises `ConfigError` if there is no type of device on which all these could run."""
        if self.types_of(components):
            return
        for part in components:
            if not self.types_of([part]):
                self.profile.curve(part.name, self.cluster.types[0])
        names = " and ".join(repr(part.name) for part in components)
        raise ConfigError(
            f"the profile knows no type of device on which {names} can both run; the cluster has "
            f"{', '.join(self.cluster.types)}. Measure them on the same type"
        )

    def beside_s(self, component: str, samples: int) -> float:
        """Time of a component that runs beside the devices; 0 where it was not measured."""
        types = self.profile.device_types(component)
        return self.seconds(component, types[0], 1, samples) if types else 0.0

    def memory(self, component: str, devices: int) -> float:
        """Bytes on each of its devices while it is loaded."""
        use = self.memory_use(component)
        return use.fixed_bytes + use.sharded_bytes / devices

    def memory_use(self, component: str) -> MemoryUse:
        """What is known of its memory; nothing is needed where nothing is known."""
        return self.profile.memory.get(component, MemoryUse())

    def units(self, wanted: float, device_type: str) -> int:
        """Bytes as parts of a device's memory, rounded up; more than `GRAIN` do not fit."""
        memory = self.memory_of(device_type)
        return 0 if math.isinf(memory) else math.ceil(wanted / memory * GRAIN - 1e-9)

    def switch_s(self, component: str) -> float:
        """To leave the devices once and come back once."""
        use = self.memory_use(component)
        return use.onload_s + use.offload_s

    def transfer_s(self, source: str, samples: int, messages: int, bytes_per_s: float = 0.0) -> float:
        """What `source` yields for `samples`, in so many messages, to other devices. Without a bandwidth,
        as if a quarter of the nodes sent at the same time."""
        size = self.profile.sample_bytes.get(source, 0.0) * samples
        rate = bytes_per_s or self._slowest * max(1, len(self.cluster.nodes) // 4)
        return messages * self.cluster.latency_s + size / rate

    def sync_s(self, source: str, together: bool, bytes_per_s: float = 0.0) -> float:
        """Weights from `source` to a component on the same devices (`together`) or on others, where
        every node takes in all of them."""
        if together:
            return self.profile.sync_shared_s
        size = self.profile.weight_bytes.get(source, 0.0)
        seconds = size / (bytes_per_s or self._slowest) + self.cluster.latency_s
        return self.profile.sync_apart_s + seconds

    def bandwidth(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Bytes a second between two sets of devices; pairs of nodes work at the same time."""
        nodes = [set(self.nodes[list(part)].tolist()) for part in (sources, targets)]
        one = len(nodes[0] | nodes[1]) == 1
        rate = self.cluster.intra_node_bytes_per_s if one else self.cluster.inter_node_bytes_per_s
        return rate * min(len(part) for part in nodes)

    def kinds_of(self, devices: Sequence[int]) -> tuple[str, ...]:
        """The types of some devices."""
        nodes = set(self.nodes[list(devices)].tolist())
        return tuple({self.cluster.nodes[node].type: None for node in sorted(nodes)})

    @cached_property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The node of every device."""
        return np.repeat(np.arange(len(self.cluster.nodes)), [node.devices for node in self.cluster.nodes])

    @property
    def _slowest(self) -> float:
        one = len(self.cluster.nodes) == 1
        return self.cluster.intra_node_bytes_per_s if one else self.cluster.inter_node_bytes_per_s
