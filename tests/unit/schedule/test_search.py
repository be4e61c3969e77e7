"""What the search makes of small jobs whose answer one can see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Mode
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.search import search
from rlinf_core.testing.plans import random_problem

GIB = float(2**30)


def graph(barrier: bool = False, samples: int = 64, **changes: object) -> Graph:
    made = Graph(
        (Component("rollout"), Component("actor", lockstep=True)),
        (Edge("rollout", "actor", barrier, quantum=4),),
        samples,
        syncs=(("actor", "rollout"),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def profile(**laws: Coefficients) -> Profile:
    return Profile(curves=tuple(WrittenCurve(name, law) for name, law in laws.items()))


SCALES = profile(rollout=Coefficients(0.0, 1.0), actor=Coefficients(0.0, 0.5))
LONG_TAIL = profile(rollout=Coefficients(20.0, 0.1), actor=Coefficients(0.0, 0.7, 0.0, 12.0))


def test_what_scales_perfectly_runs_everywhere_in_turns() -> None:
    best = search(graph(), SCALES, Cluster((Node(4),))).best
    assert best.mode == "collocated"
    assert best.assignments["rollout"].devices == (0, 1, 2, 3)
    assert best.prediction is not None
    assert best.prediction.step_s == pytest.approx(16 + 8)


def test_what_does_not_scale_runs_beside_and_in_chunks() -> None:
    found = search(graph(), LONG_TAIL, Cluster((Node(2),)))
    assert found.best.mode == "disaggregated"
    assert found.best.assignments["rollout"].chunk % 4 == 0
    assert found.best.assignments["rollout"].chunk > 0
    assert found.best.assignments["actor"].chunk == 0
    modes = [candidate.plan.mode for candidate in found.candidates]
    assert set(modes) == {"collocated", "disaggregated", "hybrid"}
    collocated = next(one for one in found.candidates if one.plan.mode == "collocated")
    assert "s slower" in collocated.reason
    assert found.candidates[0].reason == ""


def test_behind_a_barrier_there_is_nothing_to_gain_from_being_apart() -> None:
    best = search(graph(barrier=True), LONG_TAIL, Cluster((Node(2),))).best
    assert best.assignments["rollout"].chunk == 0


def test_more_devices_than_help_stay_unused() -> None:
    slow_together = profile(rollout=Coefficients(0.0, 1.0), actor=Coefficients(0.0, 0.01, 0.0, 50.0))
    best = search(graph(), slow_together, Cluster((Node(4),))).best
    assert len(best.assignments["actor"].devices) == 1


@pytest.mark.parametrize("mode", ["collocated", "disaggregated", "hybrid"])
def test_a_mode_that_is_asked_for_is_kept(mode: Mode) -> None:
    found = search(graph(), SCALES, Cluster((Node(4),)), mode)
    assert {plan.mode for plan in found.plans} == {mode}


def test_a_mode_that_cannot_be_says_why() -> None:
    with pytest.raises(
        ConfigError, match=r"disaggregated needs devices of its own for each of rollout, actor"
    ):
        search(graph(), SCALES, Cluster((Node(1),)), "disaggregated")
    assert "disaggregated" in search(graph(), SCALES, Cluster((Node(1),))).missing


def test_what_does_not_fit_together_leaves_in_turns() -> None:
    memory = {"rollout": MemoryUse(6e9, 0, 1e9, 0.5, 0.5), "actor": MemoryUse(5e9, 0, 1e9, 0.25, 0.25)}
    best = search(
        graph(), replace(SCALES, memory=memory), Cluster((Node(2, "cpu", 1e10),)), "collocated"
    ).best
    assert not any(part.resident for part in best.assignments.values())
    assert best.prediction is not None
    assert best.prediction.step_s == pytest.approx(32 + 16 + 1.5)
    assert best.prediction.memory_bytes == pytest.approx(1e9 + 1e9 + 5e9)


def test_what_fits_stays() -> None:
    memory = {"rollout": MemoryUse(4e9, 0, 0, 0.5, 0.5), "actor": MemoryUse(5e9, 0, 0, 0.25, 0.25)}
    best = search(graph(), replace(SCALES, memory=memory), Cluster((Node(2, "cpu", 1e10),))).best
    assert all(part.resident for part in best.assignments.values())


def test_a_component_that_fits_nowhere_is_named_with_what_would_fit() -> None:
    memory = {"actor": MemoryUse(2 * GIB, 24 * GIB)}
    with pytest.raises(ConfigError) as error:
        search(graph(), replace(SCALES, memory=memory), Cluster((Node(2, "cpu", 8 * GIB),)))
    assert "actor needs 14 GiB on each of 2 cpu device(s), which have 8 GiB" in str(error.value)
    assert "what would fit: 4 devices of 8 GiB, or devices of at least 14 GiB" in str(error.value)


def test_a_component_of_unknown_cost_is_named() -> None:
    with pytest.raises(ConfigError, match="does not know how long 'actor' takes on 'cpu'"):
        search(graph(), profile(rollout=Coefficients(1.0)), Cluster((Node(2),)))


def test_model_parallel_sizes_larger_than_the_cluster_are_named() -> None:
    parts = (Component("rollout"), Component("actor", parallel_sizes=(4, 8)))
    with pytest.raises(ConfigError, match="actor runs on a multiple of 4 or 8 devices; there are 2"):
        search(graph(components=parts), SCALES, Cluster((Node(2),)))


def test_parts_keep_to_one_node_where_they_can() -> None:
    unequal = profile(rollout=Coefficients(20.0, 1.0), actor=Coefficients(0.0, 1.0, 0.0, 9.0))
    cluster = Cluster((Node(4), Node(4), Node(4)), latency_s=0.0)
    for plan in search(graph(samples=48), unequal, cluster, top=20).plans:
        for part in plan.assignments.values():
            if len(part.devices) <= 4 and plan.mode == "disaggregated":
                assert len({cluster.node_of(device) for device in part.devices}) == 1, plan


def test_each_type_of_device_does_what_it_is_good_at() -> None:
    kinds = {
        ("rollout", "fast"): 1.0,
        ("rollout", "slow"): 1.1,
        ("actor", "fast"): 0.5,
        ("actor", "slow"): 9.0,
    }
    known = Profile(
        curves=tuple(
            WrittenCurve(name, Coefficients(5.0, each), kind) for (name, kind), each in kinds.items()
        )
    )
    best = search(graph(), known, Cluster((Node(1, "fast"), Node(4, "slow")))).best
    assert best.assignments["actor"].devices == (0,)
    assert set(best.assignments["rollout"].devices) <= {1, 2, 3, 4}


def test_environment_and_policy_sit_apart_while_training_has_all_devices() -> None:
    parts = (Component("environment"), Component("policy"), Component("actor", lockstep=True))
    edges = (Edge("environment", "policy"), Edge("policy", "actor", barrier=True))
    made = Graph(parts, edges, 64, cycles=(("environment", "policy"),), syncs=(("actor", "policy"),))
    known = profile(
        environment=Coefficients(8.0, 0.1), policy=Coefficients(8.0, 0.1), actor=Coefficients(0.0, 0.5)
    )
    best = search(made, known, Cluster((Node(2),), latency_s=0.0)).best
    assert best.mode == "hybrid"
    assert best.assignments["environment"].devices == (0,)
    assert best.assignments["policy"].devices == (1,)
    assert best.assignments["actor"].devices == (0, 1)
    assert best.stages > 1


def test_no_two_candidates_have_the_same_devices() -> None:
    found = search(graph(), SCALES, Cluster((Node(8),)), top=30)
    seats = [tuple(part.devices for part in plan.assignments.values()) for plan in found.plans]
    assert len(set(seats)) == len(seats)
    times = [one.simulation.step_s for one in found.candidates]
    assert times == sorted(times)


def test_one_plan_asked_for_is_the_best_of_all() -> None:
    for seed in range(12):
        problem = random_problem(seed, 3, 4)
        try:
            several = search(problem.graph, problem.profile, problem.cluster).best
        except ConfigError:
            continue
        (one,) = search(problem.graph, problem.profile, problem.cluster, top=1).plans
        assert one == several
