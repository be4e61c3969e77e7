"""Where clusters come from: a YAML file, or this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.devices import MOST_THREADS, Inventory, default_ranks
from rlinf_core.errors import ConfigError, suggest

GIB = 2**30
MOST_DEVICES = 2**20
_NODE = {"count": 1, "devices": None, "type": "cpu", "memory_gib": math.inf, "group": ""}
_LINKS = {  # key of the file -> field of Cluster and its unit
    "intra_node_gb_per_s": ("intra_node_bytes_per_s", 1e9),
    "inter_node_gb_per_s": ("inter_node_bytes_per_s", 1e9),
    "latency_us": ("latency_s", 1e-6),
}
_EXAMPLE = "nodes: [{count: 2, devices: 8, type: H100, memory_gib: 80}]"


def local_cluster(found: Inventory, devices: int = 0) -> Cluster:
    """This machine as one node: its GPUs, or on the CPU as many devices as asked for, by default one a
    core and at most two. Raises `ConfigError` for more devices than there are GPUs."""
    gpus = found.cuda_devices
    count = devices or default_ranks(found)[0]
    if not gpus:
        return Cluster((Node(count, "cpu", found.memory_bytes / count),))
    if count > len(gpus):
        raise ConfigError(
            f"ranks: {count} devices are asked for, this machine has {len(gpus)} ({gpus[0].name}); "
            f"set ranks={len(gpus)} or fewer"
        )
    return Cluster((Node(count, gpus[0].name, min(gpu.memory_bytes for gpu in gpus[:count])),))


def cores_of(found: Inventory, devices: int, device: int) -> tuple[int, ...]:
    """The cores that the process of a device is pinned to, when a job has so many devices.

    Devices share no core unless there are more of them than cores. On the CPU they are as many as the
    device has threads, so that every device is as fast as another.
    """
    cores = found.cores
    each = max(1, len(cores) // devices)
    if not found.cuda_devices:
        each = min(each, MOST_THREADS)
    return tuple(cores[(device * each + offset) % len(cores)] for offset in range(each))


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file describes. Raises `ConfigError` that names the file, the key and a way out.

    ```yaml
    nodes:
      - {count: 128, devices: 8, type: H100, memory_gib: 80, group: a}
      - {devices: 4, type: L40S, memory_gib: 48}
    links: {intra_node_gb_per_s: 400, inter_node_gb_per_s: 50, latency_us: 20}
    ```
    """
    tree = _loaded(path)
    reader = _Reader(path)
    reader.known("", tree, ("nodes", "links"))
    entries = tree.get("nodes")
    if not isinstance(entries, list) or not entries:
        raise reader.error("nodes", f"needs a list of nodes, got {entries!r}", _EXAMPLE)
    nodes = tuple(node for index, entry in enumerate(entries) for node in reader.nodes(index, entry))
    cluster = Cluster(nodes, **reader.links(tree.get("links")))
    if cluster.size > MOST_DEVICES:
        raise reader.error("nodes", f"makes {cluster.size} devices; there may be {MOST_DEVICES}", _EXAMPLE)
    return cluster


def _loaded(path: Path) -> Mapping[str, Any]:  # Any: YAML values
    try:
        tree = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"cluster file {path} does not exist (looked in {Path.cwd()})") from None
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 0
        raise ConfigError(f"cluster file {path}, line {line}: not valid YAML: {err.problem}") from err
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise ConfigError(f"cluster file {path} cannot be read as YAML: {err}") from err
    if not isinstance(tree, Mapping):
        raise ConfigError(f"cluster file {path}: needs a mapping such as '{_EXAMPLE}'")
    return tree


class _Reader:
    """Turns the values of one file into nodes and links."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def nodes(self, index: int, entry: object) -> list[Node]:
        """The equal nodes of one entry."""
        key = f"nodes.{index}"
        if not isinstance(entry, Mapping):
            raise self.error(key, f"needs keys such as devices and type, got {entry!r}", _EXAMPLE)
        self.known(key, entry, tuple(_NODE))
        given = {**_NODE, **entry}
        if given["devices"] is None:
            raise self.error(f"{key}.devices", "must be set: how many devices each node has", "devices: 8")
        node = Node(
            devices=self.whole(f"{key}.devices", given["devices"]),
            type=self.text(f"{key}.type", given["type"]),
            memory_bytes=self.positive(f"{key}.memory_gib", given["memory_gib"]) * GIB,
            group=self.text(f"{key}.group", given["group"]),
        )
        return [node] * self.whole(f"{key}.count", given["count"])

    def links(self, entry: object) -> dict[str, float]:
        """Fields of `Cluster` for the links that the file gives."""
        if entry is None:
            return {}
        if not isinstance(entry, Mapping):
            raise self.error(
                "links", f"needs keys below it, got {entry!r}", "links: {inter_node_gb_per_s: 50}"
            )
        self.known("links", entry, tuple(_LINKS))
        return {
            field: self.positive(f"links.{key}", entry[key]) * unit
            for key, (field, unit) in _LINKS.items()
            if key in entry
        }

    def known(self, key: str, entry: Mapping[Any, Any], allowed: tuple[str, ...]) -> None:
        """Refuse keys that are not `allowed`."""
        for name in entry:
            if name not in allowed:
                here = f"{key}.{name}" if key else str(name)
                near = suggest(str(name), allowed)
                raise ConfigError(
                    f"cluster file {self.path}: {here}: unknown key; there are: {', '.join(allowed)}.{near}"
                )

    def whole(self, key: str, value: object) -> int:
        """A whole number of 1 or more."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_DEVICES:
            raise self.error(key, f"needs a whole number of 1 or more, got {value!r}", f"{_last(key)}: 8")
        return value

    def positive(self, key: str, value: object) -> float:
        """A number above 0; YAML reads `4e9` as a text."""
        try:
            number = math.nan if isinstance(value, bool) else float(str(value))
        except ValueError:
            number = math.nan
        if not number > 0:
            raise self.error(key, f"needs a number above 0, got {value!r}", f"{_last(key)}: 80")
        return number

    def text(self, key: str, value: object) -> str:
        """A name; plain numbers such as 4090 are taken."""
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.error(key, f"needs a name, got {value!r}", f"{_last(key)}: a100")
        return str(value)

    def error(self, key: str, rule: str, example: str) -> ConfigError:
        """What is wrong with a key, and what works."""
        return ConfigError(f"cluster file {self.path}: {key}: {rule}; for example '{example}'")


def _last(key: str) -> str:
    return key.rpartition(".")[2]
