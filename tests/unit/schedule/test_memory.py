"""Memory of components from measurements whose law is known."""

from __future__ import annotations

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.memory import memory_use
from rlinf_core.schedule.place import refuse_overfull
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.profile import MemoryUse, Profile

GIB = 2**30


def test_what_is_sharded_and_what_is_not_come_apart() -> None:
    use = memory_use({1: 3.0 + 8.0, 4: 3.0 + 8.0 / 4, 2: 99.0})
    assert (use.fixed_bytes, use.sharded_bytes) == pytest.approx((3.0, 8.0))


def test_one_measurement_is_taken_as_fixed() -> None:
    use = memory_use({2: 5e9})
    assert (use.fixed_bytes, use.sharded_bytes, use.onload_s) == (5e9, 0.0, 0.5)


def test_more_bytes_on_more_devices_shard_nothing() -> None:
    assert memory_use({1: 4.0, 2: 5.0}).sharded_bytes == 0.0


GRAPH = Graph((Component("rollout"), Component("actor", lockstep=True)), (Edge("rollout", "actor"),), 8)
CLUSTER = Cluster((Node(2, memory_bytes=8 * GIB),))
HELD = Profile(memory={"rollout": MemoryUse(3 * GIB), "actor": MemoryUse(2 * GIB, sharded_bytes=6 * GIB)})


@pytest.mark.parametrize(
    ("rollout", "actor", "fits"),
    [
        (Assignment((0, 1)), Assignment((0, 1)), True),  # 3 + 2 + 6 / 2 = 8
        (Assignment((0,)), Assignment((1,)), True),
        (Assignment((0,)), Assignment((0,)), False),  # 3 + 2 + 6 = 11
        (Assignment((0,), resident=False), Assignment((0,), resident=False), True),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_what_each_component_needs(
    rollout: Assignment, actor: Assignment, fits: bool
) -> None:
    plan, cost = Plan({"rollout": rollout, "actor": actor}), CostModel(GRAPH, HELD, CLUSTER)
    if fits:
        refuse_overfull(plan, GRAPH, cost)
        return
    with pytest.raises(ConfigError, match=r"rollout 3 GiB, actor 8 GiB do not fit on devices 0 with 8 GiB"):
        refuse_overfull(plan, GRAPH, cost)
