"""Placements and plans in the settings of a run, against its flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.config.compose import Options, compose
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError
from rlinf_core.run.placement import resolve_placement
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Plan

TEXT = Graph(
    (
        Component("rollout", max_devices=64),
        Component("reward", on_devices=False),
        Component("reference", lockstep=True, with_="actor"),
        Component("actor", lockstep=True, max_devices=64),
    ),
    (
        Edge("rollout", "reward"),
        Edge("reward", "reference", quantum=8),
        Edge("reference", "actor", quantum=8),
    ),
    samples=64,
    syncs=(("actor", "rollout"),),
)
EMBODIED = Graph(
    (
        Component("environment", max_devices=8),
        Component("rollout", max_devices=8),
        Component("actor", lockstep=True),
    ),
    (Edge("rollout", "actor", quantum=8),),
    samples=8,
    cycles=(("environment", "rollout"),),
)
FOUR = Cluster((Node(4),))


def settings(*overrides: str) -> RunConfig:
    return compose(Options(overrides=overrides))


def resolved(*overrides: str, graph: Graph = TEXT, cluster: Cluster = FOUR) -> Plan:
    plan = resolve_placement(settings(*overrides), cluster, graph)
    assert plan is not None
    return plan


def refused(*overrides: str, graph: Graph = TEXT, cluster: Cluster = FOUR) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_placement(settings(*overrides), cluster, graph)
    return str(caught.value)


def devices(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {name: part.devices for name, part in plan.assignments.items()}


def test_without_placement_and_plan_one_has_to_be_chosen():
    assert resolve_placement(settings("mode=hybrid"), FOUR, TEXT) is None


def test_shared_devices_are_collocated_and_wait_for_the_end():
    plan = resolved("placement={'actor,rollout': all}")
    assert devices(plan) == {"rollout": (0, 1, 2, 3), "actor": (0, 1, 2, 3)}
    assert plan.mode == "collocated"
    assert plan.assignments["rollout"].chunk == 0


def test_disjoint_devices_stream_in_whole_groups():
    plan = resolved("placement={actor: 0, rollout: 1-3}", "mode=disaggregated")
    assert plan.mode == "disaggregated"
    assert plan.assignments["rollout"].chunk == 8
    assert plan.assignments["actor"].chunk == 0
    assert (
        resolved("placement={actor: 0, rollout: 1-3}", "schedule.chunk=16").assignments["rollout"].chunk == 16
    )


def test_environments_apart_from_the_policy_take_turns():
    apart = ("placement={environment: 0-1, rollout: 2-3, actor: all}",)
    assert resolved(*apart, graph=EMBODIED).stages == 2
    assert resolved(*apart, graph=EMBODIED).mode == "hybrid"
    assert resolved("placement={'environment,rollout': 0-1, actor: 2-3}", graph=EMBODIED).stages == 1


def test_members_of_a_cycle_share_all_devices_or_none():
    said = refused("placement={environment: 0-2, rollout: 2-3, actor: all}", graph=EMBODIED)
    assert said.startswith("placement.environment: it talks with rollout at every action, so they share all")
    assert "of 0-2 and 2-3 they share 2. One that works: environment,rollout: 0-3" in said
    assert said.endswith("or environment: 0-2 and rollout: 3 (from override)")


def test_a_component_inside_another_follows_it():
    plan = resolved("placement={'actor,reference': 0-1, rollout: 2-3}")
    assert devices(plan) == {"rollout": (2, 3), "actor": (0, 1)}
    said = refused("placement={actor: 0-1, reference: 2, rollout: 2-3}")
    assert said.startswith(
        "placement.reference: it lives in actor, so it sits on the same devices, which are 0-1"
    )


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("{actor: 0-5, rollout: all}", "placement.actor: device 4 does not exist; there are 4 devices (0-3)"),
        ("{actor: 0}", "placement.rollout: it has no placement"),
        (
            "{actor: 0, rolout: 1, rollout: 1}",
            "there is no component 'rolout'; this run places: rollout, actor",
        ),
        (
            "{actor: 0, rollout: 1, reward: 2}",
            "placement.reward: it needs no device and runs beside the others",
        ),
        (
            "{actor: '0-3:0-1', rollout: all}",
            "placement.actor: process 0 has devices 0-1; each process runs on",
        ),
        (
            "{actor: '0-1:0-3', rollout: all}",
            "placement.actor: device 0 has 2 of its processes; a device runs",
        ),
    ],
)
def test_what_does_not_fit_the_run_is_refused(placement: str, message: str):
    said = refused(f"placement={placement}")
    assert message in said
    assert all(line.endswith("(from override)") for line in said.splitlines())


def test_more_devices_than_samples_are_refused():
    said = refused(
        "placement={'environment,rollout': 0-9, actor: 0}", graph=EMBODIED, cluster=Cluster((Node(16),))
    )
    assert "placement.environment: of its 10 devices only 8 would have work: a step has 8 samples." in said
    assert "One that works: environment: 0-7" in said


def test_a_component_on_devices_of_two_types_is_refused():
    mixed = Cluster((Node(2, "A100"), Node(2, "L40S")))
    said = refused("placement={actor: 1-2, rollout: 2-3}", cluster=mixed)
    assert "placement.actor: its devices are of several types, A100 and L40S" in said
    assert "One that works: actor: 1" in said


def test_a_mode_that_the_placement_is_not_is_refused():
    said = refused("placement={'actor,rollout': all}", "mode=disaggregated")
    assert said.startswith(
        "mode: disaggregated (from override) contradicts the placement, which is collocated"
    )
    assert "(rollout: 0-3, actor: 0-3 (from override)); drop one of them (mode=auto, placement=null)" in said


def test_a_plan_file_is_read_and_checked(tmp_path: Path):
    path = tmp_path / "plan.yaml"
    path.write_text("components: {rollout: {devices: 1-3, chunk: 8}, actor: {devices: 0}}\n")
    plan = resolved(f"plan={path}")
    assert devices(plan) == {"rollout": (1, 2, 3), "actor": (0,)}
    assert plan.assignments["rollout"].chunk == 8
    path.write_text("components: {rollout: {devices: 1-9}, actor: {devices: 0}}\n")
    assert "this cluster has devices 0-3, got 1-9" in refused(f"plan={path}")
