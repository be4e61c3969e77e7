"""Plans played out by hand: how long they take, and who is idle when."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.simulate import Simulation, simulate
from rlinf_core.schedule.turns import turns

NO_LATENCY = Cluster((Node(4),), latency_s=0.0)


def curves(**per_sample_s: float) -> tuple[WrittenCurve, ...]:
    return tuple(WrittenCurve(name, Coefficients(per_sample_s=each)) for name, each in per_sample_s.items())


def text(barrier: bool = False, ahead: bool = False) -> Graph:
    """Four samples: a second each to make, half a second each to train on, on one device."""
    edge = Edge("rollout", "actor", barrier, ahead=ahead)
    return Graph((Component("rollout"), Component("actor")), (edge,), samples=4)


def run(
    graph: Graph, profile: Profile, cluster: Cluster = NO_LATENCY, stages: int = 1, **seats: Assignment
) -> Simulation:
    return simulate(Plan(seats, stages), graph, CostModel(graph, profile, cluster))


TEXT = Profile(curves=curves(rollout=1.0, actor=0.5))


def test_chunks_that_travel_let_training_end_one_chunk_after_the_rollout() -> None:
    played = run(text(), TEXT, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(4.5)
    assert played.bubble_ratio == pytest.approx(1 - (4 + 2) / (2 * 4.5))
    starts = [span.start for span in played.timeline(1)]
    assert starts == pytest.approx([1, 2, 3, 4])


def test_a_slow_consumer_starts_with_the_first_chunk_and_never_waits_again() -> None:
    slow = Profile(curves=curves(rollout=0.5, actor=1.0))
    assert run(text(), slow, rollout=Assignment((0,), 1), actor=Assignment((1,))).step_s == pytest.approx(4.5)


def test_behind_a_barrier_nothing_starts_before_all_is_there() -> None:
    played = run(text(barrier=True), TEXT, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(6.0)
    assert played.timeline(1)[0].start == pytest.approx(4.0)


def test_without_chunks_the_consumer_waits_for_the_end() -> None:
    assert run(text(), TEXT, rollout=Assignment((0,)), actor=Assignment((1,))).step_s == pytest.approx(6.0)


def test_who_works_ahead_does_so_while_others_train() -> None:
    for barrier in (False, True):
        played = run(text(barrier, ahead=True), TEXT, rollout=Assignment((0,)), actor=Assignment((1,)))
        assert played.step_s == pytest.approx(4.0)
        assert played.timeline(1)[0].start == 0.0
        assert played.bubble_ratio == pytest.approx(1 - (4 + 2) / (2 * 4.0))


def test_who_shares_a_device_takes_turns_even_if_one_works_ahead() -> None:
    both = {"rollout": Assignment((0, 1)), "actor": Assignment((0, 1))}
    assert run(text(ahead=True), TEXT, **both).step_s == pytest.approx(2.0 + 1.0)
    some = {"rollout": Assignment((0,)), "actor": Assignment((0, 1))}
    assert run(text(ahead=True), TEXT, **some).step_s == pytest.approx(4.0 + 1.0)


def test_weights_are_copied_before_both_begin() -> None:
    graph = replace(text(ahead=True), syncs=(("actor", "rollout"),))
    profile = replace(TEXT, sync_apart_s=0.25)
    played = run(graph, profile, rollout=Assignment((0,)), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(4.25)
    assert {span.start for span in played.spans if span.kind == "run"} == {0.25}


def test_all_before_the_learners_works_ahead() -> None:
    names = ("rollout", "reward", "reference", "actor")
    parts = tuple(
        Component(name, on_devices=name != "reward", with_="actor" * (name == "reference")) for name in names
    )
    edges = tuple(Edge(one, two, ahead=one == "reward") for one, two in itertools.pairwise(names))
    graph = Graph(parts, edges, samples=4)
    assert graph.ahead == {"rollout", "reward"}
    profile = Profile(curves=curves(rollout=1.0, reward=0.1, reference=0.25, actor=0.5))
    played = run(graph, profile, rollout=Assignment((0,)), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(4.0 + 0.4)
    assert [span.component for span in played.timeline(1)] == ["reference", "actor"]


def test_on_shared_devices_one_follows_the_other() -> None:
    played = run(text(), TEXT, rollout=Assignment((0, 1)), actor=Assignment((0, 1)))
    assert played.step_s == pytest.approx(2.0 + 1.0)
    assert played.bubble_ratio == pytest.approx(0.0)
    assert played.busy_s == pytest.approx({"rollout": 2.0, "actor": 1.0})


def test_who_does_not_stay_is_loaded_and_unloaded() -> None:
    memory = {name: MemoryUse(onload_s=0.3, offload_s=0.2) for name in ("rollout", "actor")}
    profile = Profile(curves=TEXT.curves, memory=memory)
    seat = Assignment((0,), resident=False)
    played = run(text(), profile, rollout=seat, actor=seat)
    assert played.step_s == pytest.approx(4 + 2 + 2 * 0.5)
    assert [span.kind for span in played.timeline(0)] == ["load", "run", "load"] * 2
    assert played.seconds("load") == pytest.approx(1.0)


def test_samples_on_their_way_overlap_with_work_but_for_the_last_chunk() -> None:
    cluster = Cluster((Node(1), Node(1)), 1e9, inter_node_bytes_per_s=10.0, latency_s=0.1)
    profile = Profile(curves=TEXT.curves, sample_bytes={"rollout": 4.0})
    played = run(text(), profile, cluster, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(4.0 + (0.1 + 0.4) + 0.5)


def test_a_slow_link_is_the_bottleneck() -> None:
    cluster = Cluster((Node(1), Node(1)), 1e9, inter_node_bytes_per_s=1.0, latency_s=0.0)
    profile = Profile(curves=TEXT.curves, sample_bytes={"rollout": 2.0})
    played = run(text(), profile, cluster, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(1.0 + 4 * 2.0 + 0.5)


def test_weights_reach_the_rollout_before_it_starts() -> None:
    graph = Graph(text().components, text().edges, 4, syncs=(("actor", "rollout"),))
    profile = Profile(curves=TEXT.curves, weight_bytes={"actor": 2e9}, sync_shared_s=0.1, sync_apart_s=0.25)
    cluster = Cluster((Node(4),), intra_node_bytes_per_s=4e9, latency_s=0.0)
    apart = run(graph, profile, cluster, rollout=Assignment((0,)), actor=Assignment((1,)))
    shared = run(graph, profile, cluster, rollout=Assignment((0,)), actor=Assignment((0,)))
    assert apart.step_s == pytest.approx(0.25 + 0.5 + 6.0)
    assert shared.step_s == pytest.approx(0.1 + 6.0)


def test_rewards_have_no_device_and_work_while_the_rollout_does() -> None:
    graph = Graph(
        (Component("rollout"), Component("reward", on_devices=False), Component("actor")),
        (Edge("rollout", "reward"), Edge("reward", "actor")),
        samples=4,
    )
    profile = Profile(curves=curves(rollout=1.0, reward=0.25, actor=0.5))
    chunks = run(graph, profile, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    whole = run(graph, profile, rollout=Assignment((0,)), actor=Assignment((0,)))
    assert chunks.step_s == pytest.approx(4.0 + 0.25 + 0.5)
    assert whole.step_s == pytest.approx(4.0 + 1.0 + 2.0)


def test_a_follower_works_on_its_hosts_devices_before_it() -> None:
    graph = Graph(
        (Component("rollout"), Component("reference", with_="actor"), Component("actor")),
        (Edge("rollout", "reference"), Edge("reference", "actor", barrier=True)),
        samples=4,
    )
    profile = Profile(curves=curves(rollout=1.0, reference=0.25, actor=0.5))
    played = run(graph, profile, rollout=Assignment((0,), 1), actor=Assignment((1,)))
    assert played.step_s == pytest.approx(4.0 + 0.25 + 2.0)  # the reference works along, the actor waits
    assert [span.component for span in played.timeline(1)] == ["reference"] * 4 + ["actor"]


def embodied(rounds: int = 10) -> tuple[Graph, Profile]:
    graph = Graph(
        (Component("environment"), Component("policy"), Component("actor")),
        (Edge("environment", "policy"), Edge("policy", "actor", barrier=True)),
        samples=4,
        cycles=(("environment", "policy"),),
        rounds=rounds,
    )
    return graph, Profile(curves=curves(environment=1.0, policy=0.75, actor=0.5))


def test_a_cycle_on_shared_devices_adds_up() -> None:
    graph, profile = embodied()
    seat = Assignment((0, 1))
    assert run(graph, profile, environment=seat, policy=seat, actor=seat).step_s == pytest.approx(2 + 1.5 + 1)


def test_a_cycle_apart_overlaps_if_there_are_groups_that_take_turns() -> None:
    graph, profile = embodied()
    seats = {"environment": Assignment((0,)), "policy": Assignment((1,)), "actor": Assignment((0, 1))}
    one = run(graph, profile, stages=1, **seats)
    two = run(graph, profile, stages=2, **seats)
    assert one.step_s == pytest.approx(4 + 3 + 1)
    assert two.step_s == pytest.approx(4 + 3 / 20 + 1)  # the policy's last turn is not hidden


def test_groups_of_a_cycle_take_turns_in_order() -> None:
    played = turns([2.0, 2.0], groups=2, rounds=1, latency=0.0)
    assert [(turn.member, turn.group, turn.start, turn.end) for turn in played] == [
        (0, 0, 0.0, 1.0),
        (0, 1, 1.0, 2.0),
        (1, 0, 1.0, 2.0),
        (1, 1, 2.0, 3.0),
    ]


def test_no_device_does_two_things_at_once() -> None:
    graph, profile = embodied(rounds=3)
    played = run(
        graph,
        profile,
        stages=3,
        environment=Assignment((0, 1)),
        policy=Assignment((2,)),
        actor=Assignment((1, 2, 3)),
    )
    for device in range(4):
        spans = played.timeline(device)
        assert all(one.end <= two.start + 1e-9 for one, two in itertools.pairwise(spans))
