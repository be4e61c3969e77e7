"""Plans with other numbers of ranks: who sits where, and what cannot be."""

from __future__ import annotations

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.scaled import refuse_fixed, scaled

TEXT = Graph(
    (
        Component("rollout", max_devices=8),
        Component("reward", on_devices=False),
        Component("reference", lockstep=True, with_="actor"),
        Component("actor", max_devices=8, lockstep=True),
    ),
    (Edge("rollout", "actor"),),
    samples=8,
)
ROBOT = Graph(
    (Component("environment", max_devices=8), Component("rollout", max_devices=8), Component("actor")),
    (Edge("rollout", "actor"),),
    samples=8,
    cycles=(("environment", "rollout"),),
)
SPLIT = Graph((Component("rollout"), Component("actor", (2,), max_devices=16)), (), samples=8)
FOUR = Cluster((Node(4),))


def plan(**devices: tuple[int, ...]) -> Plan:
    return Plan({name: Assignment(each, chunk=4) for name, each in devices.items()}, stages=2)


def sets(found: Plan) -> dict[str, tuple[int, ...]]:
    return {name: part.devices for name, part in found.assignments.items()}


def test_new_ranks_sit_where_nobody_does_and_the_last_ones_leave_first() -> None:
    grown = scaled(plan(rollout=(0, 1), actor=(2,)), TEXT, FOUR, {"actor": 3})
    assert sets(grown) == {"rollout": (0, 1), "actor": (2, 0, 3)}
    assert sets(scaled(grown, TEXT, FOUR, {"actor": 2})) == {"rollout": (0, 1), "actor": (2, 0)}


def test_chunks_and_turns_stay() -> None:
    grown = scaled(plan(rollout=(0,), actor=(1,)), TEXT, FOUR, {"rollout": 2})
    assert (grown.assignments["rollout"].chunk, grown.stages) == (4, 2)
    assert sets(grown) == {"rollout": (0, 2), "actor": (1,)}


def test_members_of_a_cycle_that_share_devices_grow_together() -> None:
    grown = scaled(plan(environment=(0,), rollout=(0,), actor=(1,)), ROBOT, FOUR, {"environment": 2})
    assert sets(grown) == {"environment": (0, 2), "rollout": (0, 2), "actor": (1,)}


def test_members_of_a_cycle_that_sit_apart_stay_apart() -> None:
    apart = plan(environment=(0,), rollout=(1,), actor=(2,))
    assert sets(scaled(apart, ROBOT, FOUR, {"environment": 3}))["environment"] == (0, 2, 3)
    with pytest.raises(ConfigError, match="there are devices for 3 ranks of it"):
        scaled(apart, ROBOT, FOUR, {"environment": 4})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"actr": 2}, "no component 'actr'; this run places: rollout, actor. Did you mean 'actor'"),
        ({"reward": 2}, "reward: it needs no device"),
        ({"reference": 2}, "lives in actor and has as many ranks; scale actor"),
        ({"actor": 0}, "1 rank or more"),
        ({"actor": 5}, "this run has 4 devices"),
    ],
)
def test_what_cannot_be_is_one_clear_error(counts: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scaled(plan(rollout=(0,), actor=(0,)), TEXT, FOUR, counts)


def test_more_ranks_than_samples_have_no_work() -> None:
    with pytest.raises(ConfigError, match="only 8 ranks would have work: a step has 8 samples"):
        scaled(plan(rollout=(0,), actor=(0,)), TEXT, Cluster((Node(16),)), {"actor": 9})


def test_a_model_that_lies_on_two_ranks_takes_two_at_a_time() -> None:
    with pytest.raises(ConfigError, match="a multiple of 2"):
        scaled(plan(rollout=(0,), actor=(0, 1)), SPLIT, FOUR, {"actor": 3})


def test_two_that_share_devices_cannot_have_different_numbers() -> None:
    with pytest.raises(ConfigError, match="they share their devices"):
        scaled(
            plan(environment=(0,), rollout=(0,), actor=(1,)), ROBOT, FOUR, {"environment": 2, "rollout": 3}
        )


def test_devices_of_another_type_are_left_alone() -> None:
    mixed = Cluster((Node(2, "fast"), Node(2, "slow")))
    with pytest.raises(ConfigError, match="devices for 2 ranks"):
        scaled(plan(rollout=(0,), actor=(0,)), TEXT, mixed, {"actor": 3})


def test_a_backend_that_stays_as_it_is_says_how_to_go_on() -> None:
    before = plan(rollout=(0,), actor=(0,))
    refuse_fixed(scaled(before, TEXT, FOUR, {"rollout": 2}), before, TEXT, "backend 'stiff'")
    with pytest.raises(ConfigError, match="backend 'stiff' cannot change"):
        refuse_fixed(scaled(before, TEXT, FOUR, {"actor": 2}), before, TEXT, "backend 'stiff'")
