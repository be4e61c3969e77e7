"""What a run is offered of the nodes of a cluster."""

from __future__ import annotations

import pytest
from rlinf_backend_ray.config import RayConfig
from rlinf_backend_ray.nodes import RayNode, offered, read_node

from rlinf_core.errors import ConfigError

A, B = RayNode("10.0.0.1", 8, memory_bytes=64.0), RayNode("10.0.0.2", 3, memory_bytes=64.0, group="slow")
H100 = RayNode("10.0.0.3", 32, 8, "H100", group="train")
L4 = RayNode("10.0.0.4", 8, 2, "L4", group="act")


def shares(nodes: list[RayNode], ranks: int = 0, **settings: object) -> list[tuple[str, int, int]]:
    found = offered(nodes, RayConfig(**settings), ranks)  # type: ignore[arg-type]
    return [(node.name[-1], node.devices, node.threads) for node in found]


def test_a_node_without_gpus_counts_as_two_devices_or_as_many_as_one_says() -> None:
    assert shares([A, B]) == [("1", 2, 4), ("2", 2, 1)]
    assert shares([A, B], cpu_devices=1) == [("1", 1, 4), ("2", 1, 3)]
    assert shares([A, B], cpu_devices=8) == [("1", 8, 1), ("2", 3, 1)]  # not more than CPUs


def test_ranks_are_dealt_over_cpu_nodes_one_by_one() -> None:
    assert shares([A, B], 2) == [("1", 1, 4), ("2", 1, 3)]
    assert shares([A, B], 5) == [("1", 3, 2), ("2", 2, 1)]
    assert shares([A, B], 9) == [("1", 6, 1), ("2", 3, 1)]  # the second has three CPUs
    assert shares([A, B], 1) == [("1", 1, 4)]


def test_gpu_nodes_are_filled_in_order_and_cpu_nodes_beside_them_only_count_when_asked() -> None:
    assert shares([H100, L4, A]) == [("3", 8, 4), ("4", 2, 4)]
    assert shares([H100, L4, A], 9) == [("3", 8, 4), ("4", 1, 4)]
    assert shares([H100, L4, A], cpu_devices=3) == [("3", 8, 4), ("4", 2, 4), ("1", 3, 2)]


def test_types_groups_and_memory_reach_the_planner() -> None:
    first, second, third = offered([H100, L4, B], RayConfig(cpu_devices=2), 0)
    assert [(node.type, node.group) for node in (first, second, third)] == [
        ("H100", "train"),
        ("L4", "act"),
        ("cpu", "slow"),
    ]
    assert (first.memory_bytes, third.memory_bytes) == (float("inf"), 32.0)


def test_more_devices_than_there_are_come_with_what_there_is() -> None:
    with pytest.raises(
        ConfigError,
        match=r"ranks=12 devices are asked for, .* give 11 \(10.0.0.1: 8 CPUs; 10.0.0.2: 3 CPUs\)",
    ):
        offered([A, B], RayConfig(), 12)
    with pytest.raises(ConfigError, match=r"ranks=11 devices .* give 10 \(10.0.0.3: 32 CPUs, 8 H100; "):
        offered([H100, L4], RayConfig(), 11)
    with pytest.raises(ConfigError, match=r"no device is there, .* give 0 \(none\)"):
        offered([], RayConfig(), 0)


def test_a_node_is_read_as_ray_tells_it() -> None:
    told = {
        "NodeManagerAddress": "10.0.0.3",
        "Resources": {"CPU": 32.0, "GPU": 8.0, "memory": 1e9, "accelerator_type:H100": 1.0, "node:x": 1.0},
        "Labels": {"ray.io/node-group": "train", "team": "b"},
    }
    assert read_node(told, "ray.io/node-group") == RayNode("10.0.0.3", 32, 8, "H100", 1e9, "train")
    assert read_node(told, "team").group == "b"
    assert read_node({"NodeManagerAddress": "n", "Resources": {}}, "team") == RayNode("n", 0)
