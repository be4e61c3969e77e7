"""When a running plan is looked at again, and when another one is worth the switch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import Measurement, Profile


@dataclass(frozen=True)
class DriftRule:
    """The numbers of the rule."""

    tolerance: float = 0.2  # a component's median may be off its prediction by this share
    window: int = 10  # steps that the median is over
    agreeing: float = 0.9  # share of them that must be off the same way, by half the tolerance or more
    min_gain: float = 0.1  # share of the step time that a new plan must be predicted to save
    settle: int = 2  # steps after a switch that do not count
    cool_down: int = 20  # steps without a new look after the first switch; doubled by each further one


class Drift:
    """Compares every step with its prediction.

    Load that comes and goes cannot make it switch forever: the waiting time doubles with each switch, so
    that N steps hold at most log2(N / cool_down + 1) + 1 of them.

    ```python
    drift = Drift()
    for step in steps:
        if drift.observe(measured_s, present.prediction.busy_s):
            profile = drift.renewed(profile, recent_measurements)
            present, best = predicted_by(profile)
            if drift.adopts(present, best, steps_left, switch_s):
                ...
    ```
    """

    def __init__(self, rule: DriftRule | None = None) -> None:
        self.rule = rule or DriftRule()
        self.switches = 0
        self.reason = ""  # of the last answer of `adopts`
        self._waiting = 0  # steps until measurements count again
        self._cooling = 0  # steps until a new look
        self._ratios: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=self.rule.window))

    def observe(self, measured: Mapping[str, float], predicted: Mapping[str, float]) -> bool:
        """One step's seconds by component. True if it is time to look for a better plan."""
        self._cooling = max(0, self._cooling - 1)
        if self._waiting:
            self._waiting -= 1
            return False
        for name, seconds in measured.items():
            if predicted.get(name, 0.0) > 0:
                self._ratios[name].append(seconds / predicted[name])
        return not self._cooling and any(map(self._is_off, self._ratios.values()))

    @property
    def factors(self) -> dict[str, float]:
        """How many times as long as predicted the drifted components take; the others are as predicted."""
        return {name: median(ratios) for name, ratios in self._ratios.items() if self._is_off(ratios)}

    def renewed(self, profile: Profile, recent: Iterable[Measurement]) -> Profile:
        """The profile of the load as it is now: drifted components scaled, recent steps added."""
        return profile.scaled(self.factors).adding(recent)

    def adopts(self, present: Plan, candidate: Plan, steps_left: int, switch_s: float) -> bool:
        """Whether the candidate is worth the switch. To be asked after `observe` said so, with plans whose
        predictions come from the renewed profile; `reason` tells why. Either way the next look gathers its
        own evidence.
        """
        rule = self.rule
        self._ratios.clear()
        self._cooling = rule.window
        current_s, candidate_s = _step_s(present), _step_s(candidate)
        gain = 1 - candidate_s / current_s if current_s > 0 else 0.0
        saved_s = (current_s - candidate_s) * max(0, steps_left - rule.settle)
        if gain <= rule.min_gain:
            self.reason = f"the best other plan saves {gain:.0%} of a step, not over {rule.min_gain:.0%}"
            return False
        if saved_s <= switch_s:
            self.reason = f"the switch costs {switch_s:.3g} s and saves {saved_s:.3g} s in {steps_left} steps"
            return False
        self._cooling = rule.cool_down * 2**self.switches
        self._waiting = rule.settle
        self.switches += 1
        self.reason = f"saves {gain:.0%} of the {current_s:.3g} s of a step"
        return True

    def _is_off(self, ratios: deque[float]) -> bool:
        """Whether the window is full, its median off, and nearly all of it off the same way."""
        rule = self.rule
        if len(ratios) < rule.window or abs(median(ratios) - 1) <= rule.tolerance:
            return False
        slower = sum(ratio > 1 + rule.tolerance / 2 for ratio in ratios)
        faster = sum(ratio < 1 - rule.tolerance / 2 for ratio in ratios)
        return max(slower, faster) >= rule.agreeing * rule.window


def _step_s(plan: Plan) -> float:
    """Raises `ValueError` for a plan that the planner did not make: nothing can be said of it."""
    if plan.prediction is None:
        raise ValueError("a plan without a prediction cannot be compared")
    return plan.prediction.step_s
