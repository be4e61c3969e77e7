"""The placement grammar: which processes of a component sit on which devices, as in `actor,rollout: 0-7`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlinf_core.cluster.cluster import Cluster
from rlinf_core.cluster.numbering import Numbering, as_ranges, counted, numbering
from rlinf_core.errors import ConfigError, suggest

_RANGE = r"(all|\d{1,6})(?:\s*-\s*(\d{1,6}))?"
_PART = re.compile(rf"{_RANGE}(?:\s*:\s*{_RANGE})?", re.IGNORECASE)
_FORMS = "write devices as 0-7, as 0-3,6 or as all, and processes behind a colon, as in 0-1:0-3"


@dataclass(frozen=True)
class RankPlacement:
    """Where one process of a component sits."""

    rank: int
    devices: tuple[int, ...]  # of the cluster; several where a process was given several, () on a bare node
    node: int


def parse_placement(
    spec: Mapping[str, object], cluster: Cluster, components: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, tuple[RankPlacement, ...]]:
    """The processes of each component in rank order, from `{"actor,rollout": "0-7"}`.

    Every one of `components` needs a placement, those of `optional` may have one. A value counts the
    devices of the cluster, or those of node groups: `{"node_group": "a100", "placement": "0-7"}`.
    Raises `ConfigError` with one line for each thing that is wrong.

    ```python
    cluster = Cluster((Node(8),))
    parse_placement({"actor": "0-3", "rollout": "4-5:0-1,6-7"}, cluster, ["actor", "rollout"])
    ```
    """
    known = [*components, *optional]
    placed: dict[str, tuple[RankPlacement, ...]] = {}
    problems: list[str] = []
    for key, value in spec.items():
        try:
            ranks = _Entry(key, numbering(key, value, cluster), _text(key, value)).ranks()
        except ConfigError as err:
            problems.append(str(err))
            ranks = ()
        for name in component_names(key):
            if name not in known:
                problems.append(_unknown(name, known))
            elif name in placed:
                problems.append(f"placement.{name}: it is placed twice; keep one of its entries")
            placed[name] = ranks
    problems += [_missing(name, cluster) for name in components if name not in placed]
    if problems:
        raise ConfigError("\n".join(problems))
    return placed


def component_names(key: object) -> list[str]:
    """The components that a key of a placement names."""
    return [name.strip() for name in str(key).split(",") if name.strip()]


def one_device_each(component: str, ranks: Sequence[RankPlacement]) -> tuple[int, ...]:
    """The device of each rank. Raises `ConfigError` where a process has no device or several, or where
    two processes of the component share one: the grammar can say it, this engine cannot run it."""
    devices = [device for rank in ranks for device in rank.devices]
    works = f"One that works: {component}: {as_ranges(sorted(set(devices))) or 'all'}"
    for rank in ranks:
        if len(rank.devices) != 1:
            has = f"devices {as_ranges(rank.devices)}" if rank.devices else f"node {rank.node} but no device"
            raise ConfigError(
                f"placement.{component}: process {rank.rank} has {has}; each process runs on exactly one "
                f"device here. {works}"
            )
    for device, count in Counter(devices).items():
        if count > 1:
            raise ConfigError(
                f"placement.{component}: device {device} has {count} of its processes; a device runs one "
                f"process of each component here. {works}"
            )
    return tuple(devices)


@dataclass
class _Entry:
    """One entry being read; `last` and `next_rank` follow its parts."""

    key: str
    scope: Numbering
    text: str
    taken: set[int] = field(default_factory=set)  # counted in the scope
    last: int = -1
    next_rank: int = 0

    def ranks(self) -> tuple[RankPlacement, ...]:
        """All processes. Raises `ConfigError`."""
        parts = [part.strip() for part in self.text.split(",") if part.strip()]
        if not parts:
            raise self._error("it is empty")
        return tuple(rank for part in parts for rank in self._part(part))

    def _part(self, part: str) -> Iterator[RankPlacement]:
        match = _PART.fullmatch(part)
        if match is None or (match[1].lower() == "all" and match[2]):
            raise ConfigError(f"placement.{self.key}: {part!r} is no placement; {_FORMS}")
        resources = self._resources(part, match[1], match[2])
        processes = self._processes(part, match[3], match[4], len(resources))
        many, few = max(len(resources), len(processes)), min(len(resources), len(processes))
        if many % few:
            has = counted(len(resources), self.scope.unit)
            wants = counted(len(processes), "process", "processes")
            raise self._error(f"{part!r} gives {has} to {wants}; one number must be a multiple of the other")
        return self._spread(resources, processes)

    def _resources(self, part: str, first: str, last: str | None) -> range:
        count, unit = self.scope.count, self.scope.unit
        numbers = range(count) if first.lower() == "all" else _numbers(first, last)
        if not numbers:
            raise self._error(f"{part!r} counts down; a range goes from its lower to its higher number")
        if numbers[-1] >= count:
            raise self._error(f"{unit} {max(numbers[0], count)} does not exist")
        for number in numbers:
            if number in self.taken:
                raise self._error(f"{unit} {number} is named twice; each may be named once")
        if numbers[0] < self.last:
            raise self._error(f"{part!r} comes after {unit} {self.last}; {unit}s are named in rising order")
        self.taken.update(numbers)
        self.last = numbers[-1]
        return numbers

    def _processes(self, part: str, first: str | None, last: str | None, resources: int) -> range:
        expected = self.next_rank
        if first is None:
            ranks = range(expected, expected + resources)
        elif first.lower() == "all":
            raise self._error(f"{part!r} leaves the number of processes open; number them, as in 0-1:0-3")
        else:
            ranks = _numbers(first, last)
        if not ranks or ranks[0] != expected:
            wrong = "is named twice" if ranks and ranks[0] < expected else "has no place"
            rank = ranks[0] if ranks and ranks[0] < expected else expected
            raise self._error(f"process {rank} {wrong}; those of {part!r} have to count up from {expected}")
        self.next_rank = ranks[-1] + 1
        return ranks

    def _spread(self, resources: range, processes: range) -> Iterator[RankPlacement]:
        share = max(1, len(resources) // len(processes))  # resources of one process
        sharers = max(1, len(processes) // len(resources))  # processes of one resource
        for index, rank in enumerate(processes):
            start = index // sharers * share
            own = resources[start : start + share]
            nodes = {self.scope.nodes[number] for number in own}
            if len(nodes) > 1:
                rule = f"process {rank} would have {self.scope.unit}s of {len(nodes)} nodes"
                raise self._error(f"{rule}; one process sits on one node")
            devices = tuple(self.scope.devices[number] for number in own) if self.scope.devices else ()
            yield RankPlacement(rank, devices, self.scope.nodes[own[0]])

    def _error(self, rule: str) -> ConfigError:
        """The rule that is broken, what there is, and a placement that works."""
        whole = range(self.scope.count)
        named = [match.groups() for match in map(_PART.search, self.text.split(",")) if match]
        ranges = [_numbers(first, last) if first.isdigit() else whole for first, last, *_ in named]
        usable = [number for number in whole if any(number in each for each in ranges)]
        works = self.scope.entry(self.key, usable or whole)
        return ConfigError(f"placement.{self.key}: {rule}; {self.scope.exists}. One that works: {works}")


def _text(key: str, value: object) -> str:
    """The rank text of an entry. Raises `ConfigError` if there is none."""
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in ("node_group", "placement")]
        if unknown or "placement" not in value:
            wrong = f"unknown key {unknown[0]!r}" if unknown else "'placement' is missing"
            raise ConfigError(
                f"placement.{key}: {wrong}; there are node_group and placement, as in "
                f"{key}: {{node_group: NAME, placement: 0-7}}"
            )
        value = value["placement"]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f"placement.{key}: {value!r} is no placement; {_FORMS}")
    return str(value)


def _unknown(name: str, known: Sequence[str]) -> str:
    longer = [each for each in known if name and each.startswith(name)]  # an abbreviation
    near = f" Did you mean {longer[0]!r}?" if longer else suggest(name, known)
    return f"placement.{name}: there is no component {name!r}; this run places: {', '.join(known)}.{near}"


def _missing(name: str, cluster: Cluster) -> str:
    whole = as_ranges(range(cluster.size))
    return (
        f"placement.{name}: it has no placement, and where one component is placed all have to be; there "
        f"{'is' if cluster.size == 1 else 'are'} {counted(cluster.size, 'device')} ({whole}). "
        f"One that works: {name}: {whole}"
    )


def _numbers(first: str, last: str | None) -> range:
    return range(int(first), int(first if last is None else last) + 1)
