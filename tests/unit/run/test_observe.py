"""What a step's spans say of its components, worked out by hand."""

from __future__ import annotations

import pytest

from rlinf_core.api.spans import HostSpan, Span
from rlinf_core.run.observe import measurements
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Assignment, Plan

GRAPH = Graph(
    (Component("environment"), Component("rollout"), Component("actor", lockstep=True)),
    (Edge("environment", "rollout"), Edge("rollout", "actor", barrier=True)),
    samples=12,
    cycles=(("environment", "rollout"),),
)


def host(name: str, *spans: tuple[str, str, float, float]) -> list[HostSpan]:
    return [HostSpan(name, Span(worker, "x", kind, start, end)) for worker, kind, start, end in spans]  # type: ignore[arg-type]


TOGETHER = [
    *host(
        "device0",
        ("environment[0]", "run", 10.0, 16.0),  # 6, of which 2 are the policy's and 0.5 are waiting
        ("environment[0]", "wait", 10.0, 10.5),
        ("rollout[0]", "run", 11.0, 12.0),
        ("environment[0]", "run", 12.0, 13.0),  # a part of itself, such as one call of the simulator
        ("rollout[0]", "run", 14.0, 15.0),
        ("actor[0]", "run", 16.0, 19.0),
    ),
    *host(
        "device1",
        ("environment[1]", "run", 10.0, 14.0),
        ("rollout[1]", "run", 10.0, 13.0),
        ("actor[1]", "wait", 16.0, 16.5),
        ("actor[1]", "run", 16.0, 19.0),
    ),
]


def test_a_component_takes_as_long_as_its_slowest_rank() -> None:
    plan = Plan({name: Assignment((0, 1)) for name in ("environment", "rollout", "actor")})
    found = {one.component: one for one in measurements(TOGETHER, plan, GRAPH, 0.0, 99.0, "cpu")}
    assert {name: one.seconds for name, one in found.items()} == pytest.approx(
        {"environment": 3.5, "rollout": 3.0, "actor": 3.0}
    )
    assert {one.devices for one in found.values()} == {2}
    assert {one.samples for one in found.values()} == {12}
    assert {one.chunk for one in found.values()} == {0}


def test_members_of_a_cycle_apart_work_on_a_group_at_a_time() -> None:
    plan = Plan(
        {
            "environment": Assignment((0,)),
            "rollout": Assignment((1,)),
            "actor": Assignment((0, 1)),
        },
        stages=2,
    )
    spans = host("device0", ("environment[0]", "run", 0.0, 1.0), ("actor[0]", "run", 1.0, 2.0))
    spans += host("device1", ("rollout[0]", "run", 0.0, 1.0))
    found = {one.component: one for one in measurements(spans, plan, GRAPH, 0.0, 9.0, "cpu")}
    assert found["environment"].chunk == found["rollout"].chunk == 6
    assert found["actor"].chunk == 0
    assert (found["environment"].devices, found["actor"].devices) == (1, 2)


def test_rows_that_come_in_pieces_are_trained_in_pieces() -> None:
    graph = Graph(
        (Component("rollout"), Component("reward", on_devices=False), Component("actor", lockstep=True)),
        (Edge("rollout", "reward"), Edge("reward", "actor", quantum=4)),
        samples=24,
    )
    plan = Plan({"rollout": Assignment((0, 1), chunk=8), "actor": Assignment((2, 3))})
    spans = host("device0", ("rollout[0]", "run", 0.0, 1.0)) + host("device2", ("actor[0]", "run", 0.0, 1.0))
    spans += host("reward", ("reward[0]", "run", 0.0, 0.25))
    found = {one.component: one for one in measurements(spans, plan, graph, 0.0, 9.0, "H100")}
    assert (found["rollout"].chunk, found["actor"].chunk) == (0, 4)
    assert (found["reward"].devices, found["reward"].seconds) == (1, 0.25)
    assert found["actor"].device_type == "H100"


def test_of_ranks_that_share_work_out_among_themselves_the_average_one_counts() -> None:
    plan = Plan({name: Assignment((0, 1)) for name in ("environment", "rollout", "actor")})

    def seconds(stage: str) -> dict[str, float]:
        spans = [
            HostSpan("device0", Span("rollout[0]", "generate", "run", 0.0, 1.0)),
            HostSpan("device1", Span("rollout[1]", "generate", "run", 0.0, 4.0)),
            HostSpan("device0", Span("actor[0]", stage, "run", 1.0, 6.0)),
            HostSpan("device1", Span("actor[1]", stage, "run", 4.0, 6.0)),
        ]
        return {one.component: one.seconds for one in measurements(spans, plan, GRAPH, 0.0, 6.0, "cpu")}

    assert seconds("train") == {"rollout": 4.0, "actor": 5.0}
    assert seconds("train_shared") == {"rollout": 4.0, "actor": 3.5}
