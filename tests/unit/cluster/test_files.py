"""Clusters from files and of this machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.devices import CudaDevice, Inventory
from rlinf_core.cluster.files import cores_of, local_cluster, read_cluster
from rlinf_core.errors import ConfigError

GIB = 2**30


def machine(cores: int, *gpu_gib: int) -> Inventory:
    gpus = tuple(CudaDevice("a GPU", size * GIB) for size in gpu_gib)
    return Inventory(tuple(range(cores)), 24 * GIB, lambda: gpus)


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster(path)


def test_a_file_gives_nodes_and_links(tmp_path: Path):
    cluster = read(
        tmp_path,
        "nodes:\n"
        "  - {count: 128, devices: 8, type: H100, memory_gib: 80, group: a}\n"
        "  - {devices: 4, type: 4090}\n"
        "links: {intra_node_gb_per_s: 4e2, inter_node_gb_per_s: 50, latency_us: 20}\n",
    )
    assert cluster.size == 128 * 8 + 4
    assert cluster.nodes[127] == Node(8, "H100", 80 * GIB, "a")
    assert cluster.nodes[128] == Node(4, "4090", math.inf)
    assert cluster.type_of(1023) == "H100"
    assert cluster.type_of(1024) == "4090"
    assert cluster.intra_node_bytes_per_s == 4e11
    assert cluster.inter_node_bytes_per_s == 5e10
    assert cluster.latency_s == pytest.approx(2e-5)


def test_links_have_defaults(tmp_path: Path):
    assert read(tmp_path, "nodes: [{devices: 2}]\n") == Cluster((Node(2),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "needs a mapping such as 'nodes: ["),
        ("nodes: 3", "nodes: needs a list of nodes, got 3; for example 'nodes: ["),
        ("nodes: []", "nodes: needs a list of nodes, got []"),
        ("node: []", "node: unknown key; there are: nodes, links. Did you mean 'nodes'?"),
        ("nodes: [8]", "nodes.0: needs keys such as devices and type, got 8"),
        ("nodes: [{type: H100}]", "nodes.0.devices: must be set"),
        ("nodes: [{devices: 0}]", "nodes.0.devices: needs a whole number of 1 or more, got 0"),
        (
            "nodes: [{devices: 8}, {devices: 8, count: -1}]",
            "nodes.1.count: needs a whole number of 1 or more",
        ),
        (
            "nodes: [{devices: 8, memory: 80}]",
            "nodes.0.memory: unknown key; there are: count, devices, type, memory_gib",
        ),
        ("nodes: [{devices: 8, memory_gib: big}]", "nodes.0.memory_gib: needs a number above 0, got 'big'"),
        ("nodes: [{devices: 8, group: [a]}]", "nodes.0.group: needs a name, got ['a']"),
        ("nodes: [{devices: 8}]\nlinks: {latency_us: 0}", "links.latency_us: needs a number above 0, got 0"),
        ("nodes: [{devices: 8}]\nlinks: fast", "links: needs keys below it, got 'fast'"),
        ("nodes: [{devices: 1000000, count: 1000}]", "nodes: makes 1000000000 devices; there may be 1048576"),
        ("nodes:\n  - {devices: 8\nlinks: {}", "line 3: not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_with_the_key_and_what_works(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert f"cluster file {tmp_path / 'cluster.yaml'}" in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"128x8xH100\.yaml does not exist"):
        read_cluster(tmp_path / "128x8xH100.yaml")


def test_this_machine_is_one_node_of_its_gpus():
    assert local_cluster(machine(8, 80, 40)).nodes == (Node(2, "a GPU", 40 * GIB),)
    assert local_cluster(machine(8, 80, 40), 1).nodes == (Node(1, "a GPU", 80 * GIB),)
    with pytest.raises(
        ConfigError, match=r"ranks: 3 devices are asked for, this machine has 2 .* set ranks=2"
    ):
        local_cluster(machine(8, 80, 40), 3)


@pytest.mark.parametrize(
    ("cores", "asked", "devices"), [(1, 0, 1), (2, 0, 2), (64, 0, 2), (2, 4, 4), (8, 1, 1)]
)
def test_without_gpus_a_device_is_a_share_of_the_cores_and_the_memory(cores: int, asked: int, devices: int):
    (node,) = local_cluster(machine(cores), asked).nodes
    assert node == Node(devices, "cpu", 24 * GIB / devices)


def test_devices_are_pinned_to_cores_of_their_own():
    assert [cores_of(machine(2), 2, device) for device in range(2)] == [(0,), (1,)]
    assert [cores_of(machine(64), 2, device) for device in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cores_of(machine(16, 80, 80), 2, 1) == tuple(range(8, 16))
    assert [cores_of(machine(2), 4, device) for device in range(4)] == [(0,), (1,), (0,), (1,)]
