"""The pilot in worlds whose every plan takes a known time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rlinf_core.schedule.pilot import Observed, Pilot
from rlinf_core.schedule.plan import Assignment, Plan, Prediction
from rlinf_core.schedule.profile import Measurement, Profile

STEPS = 200


def plan(rollout: tuple[int, ...], actor: tuple[int, ...]) -> Plan:
    return Plan({"rollout": Assignment(rollout), "actor": Assignment(actor)})


TOGETHER, APART, MIXED, FOUND = plan((0, 1), (0, 1)), plan((0,), (1,)), plan((0,), (0, 1)), plan((0, 1), (0,))
World = Callable[[Plan, int], float]  # seconds of a step


def seen(one: Plan, step_s: float, work: float = 100.0) -> Observed:
    return Observed(
        step_s=step_s,
        work=work,
        measurements=tuple(
            Measurement(name, len(part.devices), 8, step_s / 2) for name, part in one.assignments.items()
        ),
    )


def expecting(one: Plan, step_s: float) -> Plan:
    return Plan(one.assignments, prediction=Prediction(step_s, {"rollout": step_s / 2, "actor": step_s / 2}))


def run(
    pilot: Pilot, world: World, steps: int = STEPS, work: Callable[[int], float] = lambda step: 100.0
) -> list[Plan]:
    """The plan of every step."""
    plans = [pilot.plan]
    for step in range(steps):
        pilot.after(seen(pilot.plan, world(pilot.plan, step) * work(step) / 100, work(step)), steps - step)
        plans.append(pilot.plan)
    return plans


def key(one: Plan) -> tuple[tuple[int, ...], ...]:
    return tuple(part.devices for part in one.assignments.values())


class Fixed:
    """A planner that knows each plan's time, whatever the profile says."""

    def __init__(self, times: dict[tuple[tuple[int, ...], ...], float]) -> None:
        self.times = times

    def ranked(self, profile: Profile) -> Sequence[Plan]:
        return [self.judged(profile, one) for one in sorted((TOGETHER, APART, MIXED, FOUND), key=self._time)]

    def judged(self, profile: Profile, plan: Plan) -> Plan:
        return expecting(plan, self._time(plan))

    def _time(self, one: Plan) -> float:
        return self.times[key(one)]


TIMES = {key(TOGETHER): 1.0, key(APART): 1.6, key(MIXED): 0.9, key(FOUND): 0.7}


def new(steps_each: int = 2, predicted: dict[tuple[tuple[int, ...], ...], float] | None = None) -> Pilot:
    return Pilot(TOGETHER, [APART, MIXED], Fixed(predicted or TIMES), steps_each=steps_each)


def test_the_fastest_plan_is_kept_also_one_that_only_the_planner_thought_of() -> None:
    pilot = new()
    plans = run(pilot, lambda one, step: TIMES[key(one)])
    assert pilot.settled
    assert key(plans[-1]) == key(FOUND)
    first = [key(one) for one in plans[:13]]
    each = [key(TOGETHER), key(APART), key(MIXED), key(FOUND)]
    assert first == [name for name in each for _ in range(3)] + [key(FOUND)]
    assert pilot.plan.prediction is not None
    assert pilot.plan.prediction.step_s == 0.7
    assert "1.43x" in pilot.notes[0]


def test_what_is_measured_counts_more_than_what_was_predicted() -> None:
    pilot = new(predicted={**TIMES, key(FOUND): 0.85, key(MIXED): 0.8})
    plans = run(pilot, lambda one, step: {**TIMES, key(FOUND): 1.4}[key(one)])
    assert key(plans[-1]) == key(MIXED)


def test_plans_are_compared_by_the_work_that_their_steps_had() -> None:
    pilot = Pilot(TOGETHER, [APART, MIXED], Fixed(TIMES), steps_each=2, replan=False)
    plans = run(pilot, lambda one, step: TIMES[key(one)], work=lambda step: 100.0 + 30 * step)
    assert key(plans[-1]) == key(FOUND)
    measured = {round(one.seconds / 1.3 * 2, 6) for one in pilot.profile.measurements}
    assert measured <= set(TIMES.values())  # as with the work of the first step that counted, 1.3


def test_close_plans_are_measured_once_more() -> None:
    """The first plan is slow in its first steps, as a run is that has just begun, and the fastest later."""
    times = {key(TOGETHER): 0.8, key(APART): 1.6, key(MIXED): 0.85, key(FOUND): 2.0}
    pilot = new(predicted=times)
    plans = run(pilot, lambda one, step: 0.95 if step < 3 else times[key(one)])
    assert [key(one) for one in plans[:15]] == [
        *[key(TOGETHER)] * 3,
        *[key(APART)] * 3,
        *[key(MIXED)] * 3,
        *[key(MIXED)] * 2,  # no move, so no step that does not count
        *[key(TOGETHER)] * 4,
    ]
    assert key(plans[-1]) == key(TOGETHER)


def test_of_plans_that_are_alike_the_one_tried_first_is_taken() -> None:
    times = {key(TOGETHER): 1.0, key(APART): 1.6, key(MIXED): 0.98, key(FOUND): 2.0}
    assert key(run(new(predicted=times), lambda one, step: times[key(one)])[-1]) == key(TOGETHER)


def test_much_smaller_chunks_than_any_tried_are_not_jumped_to() -> None:
    def apart(chunk: int) -> Plan:
        return Plan({"rollout": Assignment((0,), chunk), "actor": Assignment((1,))})

    class Fine(Fixed):
        def ranked(self, profile: Profile) -> Sequence[Plan]:
            return [expecting(apart(chunk), 0.5 + chunk / 1000) for chunk in (4, 16, 32)]

    pilot = Pilot(TOGETHER, [apart(32)], Fine(TIMES), steps_each=2)
    plans = run(pilot, lambda one, step: TIMES[key(one)], steps=150)
    assert {part.assignments["rollout"].chunk for part in plans} == {0, 32, 16}


def test_what_no_component_explains_is_part_of_every_prediction() -> None:
    class Halves(Fixed):
        def judged(self, profile: Profile, plan: Plan) -> Plan:
            return expecting(plan, self.times[key(plan)] / 2 + profile.overhead_s)

    pilot = Pilot(TOGETHER, [APART, MIXED], Halves(TIMES), steps_each=2)
    run(pilot, lambda one, step: TIMES[key(one)] / 2 + 0.3)
    assert round(pilot.profile.overhead_s, 9) == 0.3


def test_the_first_step_with_a_plan_does_not_count() -> None:
    pilot = new()
    seconds: dict[tuple[tuple[int, ...], ...], int] = {}

    def world(one: Plan, step: int) -> float:
        seconds[key(one)] = seconds.get(key(one), 0) + 1
        return 50.0 if seconds[key(one)] == 1 else TIMES[key(one)]

    assert key(run(pilot, world)[-1]) == key(FOUND)


def test_a_short_run_stays_where_it_is() -> None:
    pilot = new()
    plans = run(pilot, lambda one, step: TIMES[key(one)], steps=40)
    assert {key(one) for one in plans} == {key(TOGETHER)}


def test_where_moves_take_too_long_no_more_plans_are_tried() -> None:
    """A move takes 30 s, and all that is left is 200 steps of about 1 s."""
    pilot = new()
    plans = [pilot.plan]
    for step in range(STEPS):
        moved = any(key(one) != key(TOGETHER) for one in plans)
        observed = replace(seen(pilot.plan, TIMES[key(pilot.plan)]), switch_s=30.0 if moved else 0.0)
        pilot.after(observed, STEPS - step)
        plans.append(pilot.plan)
    assert [key(one) for one in plans[:7]] == [*[key(TOGETHER)] * 3, *[key(APART)] * 3, key(TOGETHER)]
    assert {key(one) for one in plans[6:]} == {key(TOGETHER)}


def test_growing_responses_lead_to_one_switch() -> None:
    """Rollout gains little from a second device, the actor twice. While rollout takes 0.2 s it pays to share
    (0.2 + 0.8 s against 1.6 s); once it takes ten times that, they are faster apart (2.2 s against 2.8 s)."""

    def taken(one: Plan, step: int) -> dict[str, float]:
        longer = 1.0 if step < 60 else 10.0
        alone = one.assignments["rollout"].devices == (0,)
        return {"rollout": (0.22 if alone else 0.2) * longer, "actor": 1.6 if alone else 0.8}

    def step_s(rollout: float, actor: float, one: Plan) -> float:
        return max(rollout, actor) if key(one) == key(APART) else rollout + actor

    class Curves:
        def ranked(self, profile: Profile) -> Sequence[Plan]:
            plans = [self.judged(profile, one) for one in (TOGETHER, APART)]
            return sorted(plans, key=lambda one: one.prediction.step_s if one.prediction else 0.0)

        def judged(self, profile: Profile, plan: Plan) -> Plan:
            devices = len(plan.assignments["actor"].devices)
            busy = {name: profile.curve(name, "cpu").seconds(8, devices) for name in ("rollout", "actor")}
            time_s = step_s(busy["rollout"], busy["actor"], plan)
            return Plan(plan.assignments, prediction=Prediction(time_s, busy))

    pilot = Pilot(TOGETHER, [APART], Curves(), steps_each=2)
    plans = [pilot.plan]
    for step in range(STEPS):
        busy = taken(pilot.plan, step)
        devices = len(pilot.plan.assignments["actor"].devices)
        measured = tuple(Measurement(name, devices, 8, time_s) for name, time_s in busy.items())
        took = step_s(busy["rollout"], busy["actor"], pilot.plan)
        pilot.after(Observed(took, 100.0, measured), STEPS - step)
        plans.append(pilot.plan)
    moves = [step for step in range(1, len(plans)) if key(plans[step]) != key(plans[step - 1])]
    assert moves[:2] == [3, 6]  # to the plan on trial, and back
    assert len(moves) == 3
    assert 60 < moves[-1] < 90
    assert key(plans[-1]) == key(APART)


def test_a_plan_that_is_not_faster_in_fact_is_left_again() -> None:
    """From step 60 on everything takes longer, and the planner has wrong hopes of another plan."""

    class Hopeful(Fixed):
        def ranked(self, profile: Profile) -> Sequence[Plan]:
            drifted = profile.curve("rollout", "cpu").seconds(8, 2) > 0.6
            return [
                self.judged(profile, one) for one in ((APART, TOGETHER) if drifted else (TOGETHER, APART))
            ]

        def judged(self, profile: Profile, plan: Plan) -> Plan:
            slow = profile.curve("rollout", "cpu").seconds(8, 2)
            return expecting(plan, 2 * slow if plan is not APART else min(1.0, slow))

    pilot = Pilot(TOGETHER, [APART], Hopeful(TIMES), steps_each=2)
    plans = run(pilot, lambda one, step: TIMES[key(one)] * (1.0 if step < 60 else 1.5))
    late = [key(one) for one in plans[60:]]
    assert key(APART) in late
    assert late[-60:] == [key(TOGETHER)] * 60
    assert any("faster in fact" in note for note in pilot.notes)
    assert late.count(key(APART)) == 6  # once: one step that does not count, and five to prove itself


def test_noise_of_ten_percent_moves_nobody() -> None:
    noise = np.random.default_rng(0)
    pilot = new()
    plans = run(pilot, lambda one, step: TIMES[key(one)] * float(noise.uniform(0.9, 1.1)), steps=1000)
    assert {key(one) for one in plans[20:]} == {key(FOUND)}
