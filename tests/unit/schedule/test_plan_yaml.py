from __future__ import annotations

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Assignment, Plan, Prediction
from rlinf_core.schedule.plan_yaml import (
    parse_devices,
    plan_from_yaml,
    plan_to_yaml,
    read_plan,
)

GRAPH = Graph(
    (
        Component("environment"),
        Component("rollout", parallel_sizes=(1, 2), max_devices=4),
        Component("score", on_devices=False),
        Component("reference", with_="actor"),
        Component("actor", lockstep=True),
    ),
    (Edge("rollout", "actor"),),
    samples=64,
    cycles=(("environment", "rollout"),),
)
CLUSTER = Cluster((Node(4, "A100"), Node(4, "H100")))
PLAN = Plan(
    {
        "environment": Assignment((0, 1)),
        "rollout": Assignment((3, 2), chunk=16, resident=False, model_parallel=2),
        "actor": Assignment((0, 1, 2, 3), micro_batch=4),
    },
    stages=2,
    prediction=Prediction(12.5, {"rollout": 3.25, "actor": 9e-05}, 1.5e9, 0.25),
)


def test_a_plan_reads_back_as_it_was_written(tmp_path):
    text = plan_to_yaml(PLAN)
    assert plan_from_yaml(text, GRAPH, CLUSTER) == PLAN
    (tmp_path / "plan.yaml").write_text(text)
    assert read_plan(tmp_path / "plan.yaml") == PLAN
    bare = Plan({"actor": Assignment((0,))})
    assert plan_from_yaml(plan_to_yaml(bare)) == bare


def test_a_plan_is_readable():
    assert plan_to_yaml(PLAN).splitlines()[:13] == [
        "mode: hybrid",
        "stages: 2",
        "components:",
        "  environment:",
        "    devices: 0-1",
        "  rollout:",
        "    devices: 3,2",
        "    chunk: 16",
        "    resident: false",
        "    model_parallel: 2",
        "  actor:",
        "    devices: 0-3",
        "    micro_batch: 4",
    ]


@pytest.mark.parametrize(
    ("text", "devices"),
    [("0-3,6", (0, 1, 2, 3, 6)), ("5", (5,)), (7, (7,)), ([2, 0], (2, 0)), (" 4 , 0-1", (4, 0, 1))],
)
def test_devices_are_ranges_in_rank_order(text, devices):
    assert parse_devices(text, "here") == devices
    assert parse_devices(as_ranges(devices), "here") == devices


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0-3,2", "here: device 2 is named twice in '0-3,2'"),
        ("-1", "here: needs device numbers such as '0-3,6' \\(from 0\\), got '-1'"),
        (-1, "here: needs device numbers such as '0-3,6' \\(from 0\\), got -1"),
        ("3-1", "here: the range '3-1' runs backwards; write 1-3"),
        ("0-", "needs device numbers"),
        ("all", "needs device numbers"),
        ("", "needs device numbers"),
        (None, "needs device numbers"),
        (1.5, "needs device numbers"),
    ],
)
def test_other_devices_are_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        parse_devices(value, "here")


def plan(**changes: str) -> str:
    parts = {"environment": "devices: 0-1", "rollout": "devices: 2-3", "actor": "devices: 0-3"} | changes
    return "components: {" + ", ".join(f"{name}: {{{text}}}" for name, text in parts.items() if text) + "}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plan(critic="devices: 0"), "p: components.critic: no such component; this flow places: environment"),
        (plan(score="devices: 0"), "components.score: no such component"),
        (plan(actor=""), "p: components.actor: must be given its devices"),
        (plan(actor="device: 0"), "components.actor: unknown key 'device'; allowed: devices, .*Did you mean"),
        (plan(actor="devices: 0, chunk: -2"), "actor.chunk: needs a whole number of 0 or more, got -2"),
        (plan(actor="devices: 0, chunk: 65"), "actor.chunk: a step has 64 samples, got a chunk of 65"),
        (plan(actor="devices: 0, resident: 1"), "actor.resident: needs true or false, got 1"),
        (plan(rollout="devices: 2-4, model_parallel: 2"), "rollout.devices: needs a multiple of model_paral"),
        (plan(actor="devices: 0-1, model_parallel: 2"), "actor.model_parallel: needs one of 1, got 2"),
        (plan(rollout="devices: 3-7"), "rollout.devices: can use at most 4 devices, got 5"),
        (plan(actor="devices: 0-8"), "actor.devices: this cluster has devices 0-7, got 0-8"),
        (plan(actor="devices: 3-4"), "actor.devices: need to be of one type, are A100 and H100"),
        (
            plan(rollout="devices: 1-2"),
            "components.environment and components.rollout exchange messages, so they need the same "
            "devices or none in common, got 0-1 and 1-2",
        ),
        (
            plan(reference="devices: 0"),
            "components.reference: shares the memory of actor, so it needs the same",
        ),
        ("mode: colocated\n" + plan(), "p: mode: needs one of collocated, disaggregated, hybrid, got 'coloc"),
        (
            "mode: disaggregated\n" + plan(),
            "p: mode: says disaggregated, but the devices of the components make it hybrid",
        ),
        ("stages: 0\n" + plan(), "p: stages: needs a whole number of 1 or more, got 0"),
        ("components: {}", "p: components: needs at least one component"),
        ("prediction: {step_s: -1}\n" + plan(), "p: prediction.step_s: needs a number of 0 or more, got -1"),
        ("plan: {}", "p: unknown key 'plan'; allowed: mode, stages, components, prediction"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_by_component_and_rule(text, message):
    with pytest.raises(ConfigError, match=message):
        plan_from_yaml(text, GRAPH, CLUSTER, "p")


def test_a_stated_mode_may_agree_with_the_devices():
    assert plan_from_yaml("mode: hybrid\n" + plan(), GRAPH).mode == "hybrid"
    assert plan_from_yaml("mode: disaggregated\n" + plan(actor="devices: 4-5"), GRAPH).mode == "disaggregated"
    same = plan(environment="devices: 0", rollout="devices: 0", actor="devices: 0")
    assert plan_from_yaml("mode: collocated\n" + same, GRAPH).mode == "collocated"


def test_a_component_that_shares_memory_may_be_named_and_is_left_out():
    found = plan_from_yaml(plan(reference="devices: 0-3"), GRAPH)
    assert list(found.assignments) == ["environment", "rollout", "actor"]


def test_components_come_in_flow_order_however_they_are_written():
    text = "components: {actor: {devices: 0}, rollout: {devices: 0}, environment: {devices: 0}}"
    assert list(plan_from_yaml(text, GRAPH).assignments) == ["environment", "rollout", "actor"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"plan .*none\.yaml cannot be read: .*No such file"):
        read_plan(tmp_path / "none.yaml")


def test_only_what_trains_takes_micro_batches():
    plan = Plan({**PLAN.assignments, "rollout": Assignment((3, 2), micro_batch=4)})
    with pytest.raises(ConfigError, match=r"components\.rollout\.micro_batch: only what trains"):
        plan_from_yaml(plan_to_yaml(plan), GRAPH)
