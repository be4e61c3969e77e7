"""What the numbers of a placement count: devices of the cluster, those of node groups, or whole nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlinf_core.cluster.cluster import Cluster
from rlinf_core.errors import ConfigError, suggest

NODES = "node"  # the reserved node group whose members are whole nodes


@dataclass(frozen=True)
class Numbering:
    """Devices or nodes, counted from 0."""

    unit: str  # "device", "node"
    nodes: tuple[int, ...]  # the node of each
    devices: tuple[int, ...]  # the cluster's number of each; () for nodes
    groups: tuple[str, ...] = ()  # the node groups that were named

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes)

    @property
    def exists(self) -> str:
        """What there is, in words: `there are 8 devices of node group 'a100' (0-7)`."""
        verb = "is" if self.count == 1 else "are"
        of = f" of node group {' and '.join(map(repr, self.groups))}" if self.groups else ""
        return f"there {verb} {counted(self.count, self.unit)}{of} ({as_ranges(range(self.count))})"

    def entry(self, key: str, numbers: Iterable[int]) -> str:
        """A placement with these numbers, as a user writes it."""
        text = as_ranges(numbers)
        group = ",".join(self.groups) if self.unit == "device" else NODES
        return f"{key}: {{node_group: {group}, placement: {text}}}" if group else f"{key}: {text}"


def numbering(key: str, value: object, cluster: Cluster) -> Numbering:
    """What a placement's value counts. Raises `ConfigError` for an unknown node group."""
    labels = _labels(value)
    if labels == (NODES,):
        return Numbering("node", tuple(range(len(cluster.nodes))), ())
    known = list(dict.fromkeys(node.group for node in cluster.nodes if node.group))
    for label in labels:
        if label not in known:
            there = f"there are: {', '.join(known)}" if known else "the cluster names none"
            raise ConfigError(
                f"placement.{key}: there is no node group {label!r}; {there}.{suggest(label, known)} Without "
                f"node_group a placement counts all devices: {key}: {as_ranges(range(cluster.size))}"
            )
    found = list(_members(cluster, labels))
    return Numbering("device", tuple(node for node, _ in found), tuple(device for _, device in found), labels)


def as_ranges(numbers: Iterable[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6: neighbours that count up become a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1:] = [number] if len(runs[-1]) == 2 else [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def counted(number: int, unit: str, plural: str = "") -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {unit if number == 1 else plural or f'{unit}s'}"


def _members(cluster: Cluster, groups: Sequence[str]) -> Iterator[tuple[int, int]]:
    """`(node, device)` of the groups in the order named; of all nodes if none is."""
    firsts = [sum(node.devices for node in cluster.nodes[:number]) for number in range(len(cluster.nodes))]
    for group in groups or (None,):
        for number, (node, first) in enumerate(zip(cluster.nodes, firsts, strict=True)):
            if group in (None, node.group):
                yield from ((number, first + offset) for offset in range(node.devices))


def _labels(value: object) -> tuple[str, ...]:
    given = value.get("node_group") if isinstance(value, Mapping) else None
    if given is None:
        return ()
    parts = given if isinstance(given, (list, tuple)) else str(given).split(",")
    return tuple(dict.fromkeys(str(part).strip() for part in parts))
