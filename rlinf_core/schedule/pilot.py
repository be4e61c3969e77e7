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
MOST_TRIED = 3  # plans of the planner's that are tried
COST_SHARE = 0.2  # of the steps that are left, at most, go into measuring
RECENT = 8  # settled steps from which a new profile is made


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
    """A plan and the seconds that each unit of work took with it."""

    plan: Plan
    rates: list[float]


class Pilot:
    """Tries some plans for a few steps each, asks the planner, tries what it finds, and stays with the
    fastest; later it watches whether that still holds.

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
        self._queue = [trial for trial in trials if not same(trial, plan)]
        self._trials = [Trial(plan, [])]
        self._searched = False
        self._cold = True  # the first step with a plan is not like those that follow
        self._scale = 0.0  # work of the first step that was measured
        self._recent: list[Observed] = []
        self._memory: dict[str, dict[int, float]] = {}
        self._drift = Drift()

    @property
    def predicted(self) -> Mapping[str, float]:
        """What is expected of the present plan: seconds by component, and of the step."""
        prediction = self.plan.prediction
        return {} if prediction is None else {**prediction.busy_s, "step": prediction.step_s}

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
        if not self._trials[0].rates and not self._worth(steps_left):
            self.settled, self._replan = True, False
            return None
        self._learn(observed)
        trial = self._trials[-1]
        if len(trial.rates) < self._steps_each:
            return None
        return self._next(steps_left)

    def _worth(self, steps_left: int) -> bool:
        plans = len(self._queue) + 1 + MOST_TRIED
        return plans * (self._steps_each + 1) <= COST_SHARE * steps_left

    def _learn(self, observed: Observed) -> None:
        self._scale = self._scale or observed.work
        self._trials[-1].rates.append(observed.step_s / observed.work)
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

    def _next(self, steps_left: int) -> Plan | None:
        if not self._queue and not self._searched:
            self._searched = True
            self._queue = self._worth_trying()
        if self._queue:
            return self._try(self._queue.pop(0))
        return self._settle()

    def _worth_trying(self) -> list[Plan]:
        """What the planner finds about as fast as the fastest, and was not tried yet."""
        found = self._planner.ranked(self.profile)
        if not found:
            return []
        best = _step_s(found[0])
        known = [trial.plan for trial in self._trials]
        near = [plan for plan in found if _step_s(plan) <= best * NEAR]
        return [plan for plan in near if not any(same(plan, other) for other in known)][:MOST_TRIED]

    def _try(self, plan: Plan) -> Plan:
        self._trials.append(Trial(plan, []))
        return self._go(plan)

    def _go(self, plan: Plan) -> Plan:
        self.plan, self._cold = plan, True
        return plan

    def _settle(self) -> Plan | None:
        best = min(self._trials, key=lambda trial: median(trial.rates))
        self.settled = True
        first = median(self._trials[0].rates)
        self.notes.append(
            f"{best.plan.mode} is the fastest of {len(self._trials)} plans tried"
            f" ({first / median(best.rates):.2f}x the speed of {self._trials[0].plan.mode})"
        )
        chosen = self._planner.judged(self.profile, best.plan)
        if same(chosen, self.plan):
            self.plan = chosen
            return None
        return self._go(chosen)

    def _watch(self, observed: Observed, steps_left: int) -> Plan | None:
        if not self._replan or self.plan.prediction is None:
            return None
        self._recent = [*self._recent[1 - RECENT :], observed]
        seconds = {one.component: one.seconds for one in observed.measurements}
        if not self._drift.observe(seconds, self.plan.prediction.busy_s):
            return None
        self._scale = median(step.work for step in self._recent)
        fresh = [one for step in self._recent for one in self._scaled(step)]
        self.profile = self._drift.renewed(self.profile, fresh)
        found = self._planner.ranked(self.profile)
        present = self._planner.judged(self.profile, self.plan)
        if not self._drift.adopts(present, found[0], steps_left, observed.switch_s):
            self.plan = present
            return None
        self.notes.append(f"going on {found[0].mode}: components take other times, it {self._drift.reason}")
        return self._go(found[0])


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans run alike, whatever is expected of them."""
    return one.assignments == other.assignments and one.stages == other.stages


def _step_s(plan: Plan) -> float:
    return float("inf") if plan.prediction is None else plan.prediction.step_s
