"""The devices of a run, from what its engine offers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from rlinf_core.api import Engine, EngineNode, Host, HostSpec
from rlinf_core.cluster.cluster import Node
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError
from rlinf_core.plugins import NoConfig
from rlinf_core.run.machines import find_machines
from rlinf_core.run.placement import check_placement
from rlinf_core.run.planning import prepare

NODES = (
    EngineNode("10.0.0.1", 2, "H100", 80e9, threads=4, group="train"),
    EngineNode("10.0.0.2", 1, "L4", 24e9, threads=2, group="act"),
)


class Elsewhere(Engine):
    """Offers two nodes, or none."""

    def __init__(self, *nodes: EngineNode) -> None:
        super().__init__(NoConfig())
        self.offered = nodes

    def nodes(self, ranks: int) -> Sequence[EngineNode]:
        return self.offered

    def start(self, hosts: Iterable[HostSpec]) -> list[Host]:
        raise ConfigError("it starts nothing")

    def stop(self, timeout_s: float = 2.0) -> None:
        return


@pytest.fixture
def config() -> RunConfig:
    return compose(Options(algo="grpo", backend="fsdp", ranks=2))


def test_nodes_of_an_engine_become_the_cluster_and_its_processes_are_not_pinned(config: RunConfig) -> None:
    found = find_machines(config, Elsewhere(*NODES))
    assert found.cluster.nodes == (Node(2, "H100", 80e9, "train"), Node(1, "L4", 24e9, "act"))
    assert found.threads == (4, 4, 2)
    assert found.cores == ((), (), ())
    assert found.hardware == "H100, L4, 2 or 4 threads a device, 2 nodes"


def test_an_engine_without_nodes_has_this_machine(config: RunConfig) -> None:
    here, there = find_machines(config), find_machines(config, Elsewhere())
    assert here == there
    assert here.cluster.size == 2
    assert len(here.cluster.nodes) == 1
    assert all(here.cores)


def test_a_plan_that_nobody_chose_takes_the_devices_of_one_type(config: RunConfig) -> None:
    plan = prepare(replace(config, mode="collocated"), Elsewhere(*NODES)).first
    assert {part.devices for part in plan.assignments.values()} == {(0, 1)}


def test_a_placement_may_name_the_node_groups_of_an_engine(config: RunConfig) -> None:
    placed = replace(
        config,
        placement={
            "actor": {"node_group": "train", "placement": "0-1"},
            "rollout": {"node_group": "act", "placement": 0},
        },
    )
    plan = prepare(placed, Elsewhere(*NODES)).first
    assert plan.assignments["actor"].devices == (0, 1)
    assert plan.assignments["rollout"].devices == (2,)
    wrong = replace(config, placement={"actor,rollout": "0-3"})
    with pytest.raises(ConfigError, match="device 3 does not exist; there are 3 devices"):
        check_placement(wrong, find_machines(wrong, Elsewhere(*NODES)).cluster)
