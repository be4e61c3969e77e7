from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from rlinf_core.schedule.drift import Drift, DriftRule
from rlinf_core.schedule.plan import Assignment, Plan, Prediction
from rlinf_core.schedule.profile import Measurement, Profile

STEPS = 1000


def planner(profile: Profile) -> list[Plan]:
    """All splits of four devices between two components that run one after the other or side by side."""

    def seconds(name: str, devices: int) -> float:
        return profile.curve(name, "cpu").seconds(48, devices)

    plans = []
    for first in (1, 2, 3):
        busy = {"rollout": seconds("rollout", first), "actor": seconds("actor", 4 - first)}
        parts = {"rollout": Assignment(tuple(range(first))), "actor": Assignment(tuple(range(first, 4)))}
        plans.append(Plan(parts, prediction=Prediction(max(busy.values()), busy)))
    return sorted(plans, key=lambda plan: plan.prediction.step_s)


def train(load: Callable[[int], float], noise: Callable[[], float] = lambda: 1.0, switch_s: float = 5.0):
    """The steps at which a run of 1,000 steps switches; the rollout takes 0.1 s x load a sample, the actor
    0.1 s."""
    profile = Profile(tuple(Measurement(name, 1, 48, 4.8) for name in ("rollout", "actor")))
    plan = planner(profile)[0]
    drift = Drift()
    switches = []
    for step in range(STEPS):
        sizes = {name: len(part.devices) for name, part in plan.assignments.items()}
        true = {"rollout": 0.1 * load(step), "actor": 0.1}
        seconds = {name: 48 / sizes[name] * true[name] * noise() for name in sizes}
        if not drift.observe(seconds, plan.prediction.busy_s):
            continue
        recent = [Measurement(name, sizes[name], 48, seconds[name]) for name in sizes]
        profile = drift.renewed(profile, recent)
        found = planner(profile)
        present = next(one for one in found if one.assignments == plan.assignments)
        if drift.adopts(present, found[0], STEPS - step, switch_s):
            switches.append(step)
            plan = found[0]
        else:
            plan = present
    return switches


def test_as_predicted_nothing_happens():
    assert train(lambda step: 1.0) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_15_percent_never_switches(seed):
    draw = random.Random(seed)
    assert train(lambda step: 1.0, lambda: draw.uniform(0.85, 1.15)) == []
    assert train(lambda step: 1.0, lambda: max(0.05, draw.gauss(1.0, 0.15))) == []


@pytest.mark.parametrize("seed", range(3))
def test_slowly_growing_responses_lead_to_the_switch(seed):
    draw = random.Random(seed)
    switches = train(lambda step: 1 + step / 250, lambda: draw.uniform(0.9, 1.1))
    # from 2 + 2 devices to 3 + 1: 4.8 s (actor) against 2.4 s x load; over 10 % from load 2.2 on
    assert len(switches) == 1
    assert 300 <= switches[0] <= 450


@pytest.mark.parametrize("period", [1, 3, 7, 15, 30, 60, 125])
def test_alternating_loads_switch_at_most_six_times_in_1000_steps(period):
    draw = random.Random(period)
    switches = train(
        lambda step: 3.0 if step // period % 2 else 1 / 3, lambda: draw.uniform(0.9, 1.1), switch_s=0.0
    )
    assert len(switches) <= math.log2(STEPS / DriftRule().cool_down + 1) + 1
    assert len(switches) <= 6
    if period <= 3:
        assert switches == []


def test_the_wait_doubles_with_every_switch():
    switches = train(lambda step: 3.0 if step // 125 % 2 else 1 / 3, switch_s=0.0)
    gaps = [later - earlier for earlier, later in pairwise(switches)]
    assert len(gaps) >= 2
    assert all(gap >= 20 * 2**count for count, gap in enumerate(gaps))


PRESENT = Plan({"a": Assignment((0,))}, prediction=Prediction(10.0, {"a": 10.0}))


def candidate(step_s: float) -> Plan:
    return Plan({"a": Assignment((1,))}, prediction=Prediction(step_s, {"a": step_s}))


def test_a_gain_of_a_tenth_or_less_is_not_worth_a_switch():
    drift = Drift()
    assert not drift.adopts(PRESENT, candidate(9.0), 1000, 0.0)
    assert drift.reason == "the best other plan saves 10% of a step, not over 10%"
    assert drift.adopts(PRESENT, candidate(8.9), 1000, 0.0)
    assert drift.reason == "saves 11% of the 10 s of a step"


def test_a_switch_has_to_pay_back_in_the_steps_that_are_left():
    # 5 s a step are saved in 10 of 12 steps (two settle): 50 s
    assert not Drift().adopts(PRESENT, candidate(5.0), 12, 50.0)
    assert Drift().adopts(PRESENT, candidate(5.0), 12, 49.0)
    drift = Drift()
    assert not drift.adopts(PRESENT, candidate(5.0), 1, 0.0)
    assert drift.reason == "the switch costs 0 s and saves 0 s in 1 steps"


def observe(drift: Drift, ratios: list[float]) -> list[bool]:
    return [drift.observe({"a": ratio}, {"a": 1.0}) for ratio in ratios]


def test_the_median_of_ten_steps_must_be_off_by_more_than_a_fifth():
    assert observe(Drift(), [1.19] * 20) == [False] * 20
    assert observe(Drift(), [1.21] * 10) == [False] * 9 + [True]
    assert observe(Drift(), [0.79] * 10) == [False] * 9 + [True]
    # two outliers of ten are not the load's
    assert not any(observe(Drift(), [1.0] * 8 + [9.0] * 2))
    # half of the steps at 1.0 and half at 1.5: a median of 1.25, and nothing to rely on
    assert not any(observe(Drift(), [1.0, 1.5] * 20))


def test_only_drifted_components_are_scaled():
    drift = Drift()
    for _ in range(10):
        drift.observe({"a": 3.0, "b": 1.1, "unplanned": 5.0}, {"a": 2.0, "b": 1.0})
    assert drift.factors == {"a": pytest.approx(1.5)}
    profile = Profile((Measurement("a", 1, 8, 2.0), Measurement("a", 2, 8, 1.0), Measurement("b", 1, 8, 1.0)))
    renewed = drift.renewed(profile, [Measurement("a", 2, 8, 1.6)] * 5)
    assert [one.seconds for one in renewed.measurements] == pytest.approx([3.0] + [1.6] * 5 + [1.0])


def test_steps_right_after_a_switch_do_not_count():
    drift = Drift(DriftRule(cool_down=0))
    assert drift.adopts(PRESENT, candidate(5.0), 1000, 0.0)
    assert observe(drift, [9.0, 9.0, *[1.0] * 10]) == [False] * 12
    assert observe(drift, [1.5] * 9)[-1]


def test_a_rejected_look_is_not_repeated_before_ten_more_steps():
    drift = Drift()
    assert observe(drift, [1.5] * 10)[-1]
    drift.adopts(PRESENT, candidate(9.9), 1000, 0.0)
    assert observe(drift, [1.5] * 10) == [False] * 9 + [True]
