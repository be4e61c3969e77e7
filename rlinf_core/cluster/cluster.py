"""What a job may run on: nodes of equal devices, their memory and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Node:
    """One machine (or one group of equal machines that a placement names)."""

    devices: int
    type: str = "cpu"  # of every device here: "cpu", "H100"
    memory_bytes: float = float("inf")  # of one device
    group: str = ""  # the node group it belongs to; "" = none


@dataclass(frozen=True)
class Cluster:
    """Devices are numbered from 0 over the nodes in order."""

    nodes: tuple[Node, ...]
    intra_node_bytes_per_s: float = 4e9  # between two devices of one node
    inter_node_bytes_per_s: float = 1e9  # between two nodes
    latency_s: float = 0.0005  # of one message

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return sum(node.devices for node in self.nodes)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Device types, in the order of their first device."""
        return tuple(dict.fromkeys(node.type for node in self.nodes))

    def node_of(self, device: int) -> int:
        """The number of the node that holds a device."""
        for number, node in enumerate(self.nodes):
            if device < node.devices:
                return number
            device -= node.devices
        raise IndexError(device)

    def type_of(self, device: int) -> str:
        """A device's type."""
        return self.nodes[self.node_of(device)].type

    def count(self, device_type: str) -> int:
        """Number of devices of a type."""
        return sum(node.devices for node in self.nodes if node.type == device_type)

    def memory_of(self, device_type: str) -> float:
        """Bytes of the smallest device of a type."""
        return min(node.memory_bytes for node in self.nodes if node.type == device_type)

    def bandwidth(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Bytes a second between two sets of devices: that of the slowest link used."""
        nodes = {self.node_of(device) for device in (*sources, *targets)}
        return self.intra_node_bytes_per_s if len(nodes) == 1 else self.inter_node_bytes_per_s
