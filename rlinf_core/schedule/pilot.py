"""Which plan a run follows, decided step by step from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from rlinf_core.schedule.drift import Drift
from rlinf_core.schedule.memory import memory_use
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import Measurement, Profile

NEAR = 1.15  # predicted step times within this factor of the best are told apart by trying them
MOST_TRIED = 2  # plans of the planner's that are tried
TIE = 1.03  # measured step times within this factor are alike; of such plans the one tried first is taken
CLOSE = 1.25  # of measured step times within this factor of the best, two are measured once more
MOST_AGAIN = 2
FINER = 2  # times smaller than any tried, chunks may be: costs a call are not known further down
COST_SHARE = 0.2  # of the steps that are left, and of their time, at most goes into measuring and moving
MOVES = 1 + MOST_TRIED + MOST_AGAIN  # that are likely still to come
RECENT = 8  # settled steps from which a new profile is made
PROBATION = 5  # steps after which a plan that was adopted later must be faster than the one before


class Planner(Protocol):
    """What a pilot asks."""

    def ranked(self, profile: Profile) -> Sequence[Plan]:
        """Plans with their predictions, best first."""

    def judged(self, profile: Profile, plan: Plan) -> Plan:
        """The plan with its prediction."""


@dataclass(frozen=True)
class Observed:
    """One step as measured. `work` is what it had to do, in tokens or actions: steps differ in it."""

    step_s: float
    work: float
    measurements: tuple[Measurement, ...]
    sync_s: float = 0.0
    switch_s: float = 0.0  # seconds of the last move to another plan
    memory_bytes: Mapping[str, float] = field(default_factory=dict)  # of a component on one device
    sample_bytes: Mapping[str, float] = field(default_factory=dict)  # of what a component yields, a sample


@dataclass
class Trial:
    """A plan and the seconds that each unit of work took with it, visit by visit."""

    plan: Plan
    visits: list[list[float]] = field(default_factory=lambda: [[]])

    @property
    def rate(self) -> float:
        """Of the middle step of its best visit: what a run's first steps take is not held against it."""
        return min(median(rates) for rates in self.visits)


class Pilot:
    """Tries some plans for a few steps each, asks the planner, tries what it finds, measures close ones once
    more, and stays with the fastest; later it watches whether that still holds.

    `after` is told of every step, and answers with the plan to go on with when it is another one. What
    is trained on while plans are tried counts like any other step.
    """

    def __init__(
        self,
        plan: Plan,
        trials: Sequence[Plan],
        planner: Planner,
        *,
        steps_each: int,
        replan: bool = True,
        profile: Profile | None = None,
    ) -> None:
        self.plan = plan
        self.profile = profile or Profile()
        self.settled = not trials
        self.notes: list[str] = []  # for a person, taken by whoever shows them
        self._planner = planner
        self._steps_each = steps_each
        self._replan = replan
        self._trials = [Trial(plan)]
        self._trial = self._trials[0]
        self._queue = [Trial(trial) for trial in trials if not same(trial, plan)]
        self._searched = self._compared = False
        self._cold = True  # the first step with a plan is not like those that follow
        self._scale = 0.0  # work of the first step that was measured
        self._recent: list[Observed] = []
        self._refuted: list[Plan] = []  # adopted, and slower in fact
        self._before: tuple[Plan, float] | None = None  # the plan on whose place another is on probation
        self._memory: dict[str, dict[int, float]] = {}
        self._drift = Drift()

    def take_over(self, plan: Plan) -> None:
        """Somebody else has moved the run to this plan."""
        self._go(plan)

    def after(self, observed: Observed, steps_left: int) -> Plan | None:
        """Take in a step; the plan to change to, or None to go on as before."""
        if self._cold:
            self._cold = False
            return None
        if self.settled:
            return self._watch(observed, steps_left)
        if not self._trials[0].visits[0] and not self._worth(steps_left):
            self.settled, self._replan = True, False
            return None
        self._learn(observed)
        if len(self._trial.visits[-1]) < self._steps_each:
            return None
        return self._next(affordable=observed.switch_s <= COST_SHARE * steps_left * observed.step_s / MOVES)

    def _worth(self, steps_left: int) -> bool:
        plans = len(self._queue) + 1 + MOST_TRIED + MOST_AGAIN
        return plans * (self._steps_each + 1) <= COST_SHARE * steps_left

    def _learn(self, observed: Observed) -> None:
        self._scale = self._scale or observed.work
        self._trial.visits[-1].append(observed.step_s / observed.work)
        for name, held in observed.memory_bytes.items():
            self._memory.setdefault(name, {})[len(self.plan.assignments[name].devices)] = held
        profile = replace(
            self.profile.adding(self._scaled(observed)),
            memory={name: memory_use(held) for name, held in self._memory.items()},
            sample_bytes={**self.profile.sample_bytes, **observed.sample_bytes},
        )
        if self.plan.mode == "collocated":
            self.profile = replace(profile, sync_shared_s=observed.sync_s)
        else:
            self.profile = replace(profile, sync_apart_s=observed.sync_s)

    def _scaled(self, observed: Observed) -> list[Measurement]:
        """The step's measurements, as if it had had the first one's work."""
        factor = self._scale / observed.work
        return [replace(one, seconds=one.seconds * factor) for one in observed.measurements]

    def _next(self, *, affordable: bool) -> Plan | None:
        """The next plan to measure; where moves turn out to take too long, the best of those tried so far."""
        if not affordable:
            return self._settle()
        if not self._queue and not self._searched:
            self._searched = True
            self._queue = self._worth_trying()
        if not self._queue and not self._compared:
            self._compared = True
            self._queue = self._worth_another_look()
        if not self._queue:
            return self._settle()
        self._trial = self._queue.pop(0)
        if len(self._trial.visits) == 1:
            self._trials.append(self._trial)
        return None if same(self._trial.plan, self.plan) else self._go(self._trial.plan)

    def _worth_trying(self) -> list[Trial]:
        """What the planner finds about as fast as the fastest, and was not tried yet."""
        found = self._planner.ranked(self._explained())
        best = min((_step_s(plan) for plan in found), default=0.0)
        near = [plan for plan in found if _step_s(plan) <= best * NEAR and self._fathomable(plan)]
        known = [trial.plan for trial in self._trials]
        return [Trial(plan) for plan in near if not any(same(plan, other) for other in known)][:MOST_TRIED]

    def _fathomable(self, plan: Plan) -> bool:
        """Whether its chunks are not so much smaller than any tried that nobody knows what they cost."""
        tried = [chunk for trial in self._trials for chunk in _chunks(trial.plan)]
        return not tried or min(_chunks(plan), default=min(tried)) >= min(tried) / FINER

    def _worth_another_look(self) -> list[Trial]:
        """The fastest with another one close to it, or with the first, whose steps were those of a run that
        had just begun. If the present plan is among them it comes first."""
        fastest = min(self._trials, key=lambda trial: trial.rate)
        first = self._trials[0]
        close = [trial for trial in self._trials if trial.rate <= CLOSE * fastest.rate]
        others = [trial for trial in (first, *close) if trial is not fastest]
        if not others:
            return []
        again = [fastest, first if others[0] is first else min(others, key=lambda trial: trial.rate)]
        for trial in again:
            trial.visits.append([])
        return sorted(again, key=lambda trial: same(trial.plan, self.plan), reverse=True)

    def _explained(self) -> Profile:
        """The profile with what a step takes beyond its components, by all plans tried."""
        bare = replace(self.profile, overhead_s=0.0)
        beyond = [
            trial.rate * self._scale - _step_s(self._planner.judged(bare, trial.plan))
            for trial in self._trials
        ]
        self.profile = replace(bare, overhead_s=max(0.0, median(beyond)))
        return self.profile

    def _go(self, plan: Plan) -> Plan:
        self.plan, self._cold = plan, True
        return plan

    def _settle(self) -> Plan | None:
        fastest = min(trial.rate for trial in self._trials)
        best = next(trial for trial in self._trials if trial.rate <= fastest * TIE)
        self.settled = True
        first = self._trials[0]
        self.notes.append(
            f"{best.plan.mode} is the fastest of {len(self._trials)} plans tried"
            f" ({first.rate / best.rate:.2f}x the speed of {first.plan.mode})"
        )
        chosen = self._planner.judged(self._explained(), best.plan)
        if same(chosen, self.plan):
            self.plan = chosen
            return None
        return self._go(chosen)

    def _watch(self, observed: Observed, steps_left: int) -> Plan | None:
        if not self._replan or self.plan.prediction is None:
            return None
        self._recent = [*self._recent[1 - RECENT :], observed]
        if self._before is not None:
            return self._prove(*self._before)
        seconds = {one.component: one.seconds for one in observed.measurements}
        if not self._drift.observe(seconds, self.plan.prediction.busy_s):
            return None
        self._scale = median(step.work for step in self._recent)
        self.profile = self._drift.renewed(self.profile, self._fresh())
        found = [plan for plan in self._planner.ranked(self.profile) if self._hopeful(plan)]
        present = self._planner.judged(self.profile, self.plan)
        if not found or not self._drift.adopts(present, found[0], steps_left, observed.switch_s):
            self.plan = present
            return None
        mode, reason = found[0].mode, self._drift.reason
        self.notes.append(f"components take other times than expected: a {mode} plan {reason}")
        self._before = (present, _rate(self._recent))
        self._recent = []
        return self._go(found[0])

    def _fresh(self) -> list[Measurement]:
        return [one for step in self._recent for one in self._scaled(step)]

    def _hopeful(self, plan: Plan) -> bool:
        return self._fathomable(plan) and not any(same(plan, other) for other in self._refuted)

    def _prove(self, former: Plan, rate: float) -> Plan | None:
        """Whether the plan that was adopted is faster in fact; otherwise the former one comes back."""
        if len(self._recent) < PROBATION:
            return None
        self._before = None
        self.profile = self.profile.adding(self._fresh())
        if _rate(self._recent) < rate:
            return None
        self._refuted.append(self.plan)
        self.notes.append(f"back to the {former.mode} plan, which was faster in fact")
        self._recent = []
        return self._go(former)


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans run alike, whatever is expected of them."""
    return one.assignments == other.assignments and one.stages == other.stages


def _rate(steps: Sequence[Observed]) -> float:
    return median(step.step_s / step.work for step in steps)


def _chunks(plan: Plan) -> list[int]:
    return [part.chunk for part in plan.assignments.values() if part.chunk]


def _step_s(plan: Plan) -> float:
    return float("inf") if plan.prediction is None else plan.prediction.step_s
