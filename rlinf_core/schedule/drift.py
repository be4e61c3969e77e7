"""When a running plan is looked at again, and when another one is worth the switch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class DriftRule:
    """The numbers of the rule."""

    tolerance: float = 0.2  # a component's median may be off its prediction by this share
    window: int = 10  # steps that the median is over
    agreeing: float = 0.9  # share of them that must be off the same way, by half the tolerance or more
    min_gain: float = 0.1  # share of the step time that a new plan must be predicted to save
    settle: int = 2  # steps after a switch that do not count
    cool_down: int = 20  # steps without a new look after the first switch; doubled by each further one


@dataclass(frozen=True)
class Decision:
    """Whether to switch, and why in a sentence."""

    switch: bool
    reason: str


class Drift:
    """Compares every step with its prediction.

    Load that comes and goes cannot make it switch forever: the waiting time doubles with each switch, so
    that N steps hold at most log2(N / cool_down + 1) + 1 of them.

    ```python
    drift = Drift()
    for step in steps:
        if drift.observe(measured, predicted):
            candidate = search(graph, profile.scaled(drift.factors), cluster)
            decision = drift.judge(current_s, candidate_s, switch_s, steps_left)
    ```
    """

    def __init__(self, rule: DriftRule | None = None) -> None:
        self.rule = rule or DriftRule()
        self.switches = 0
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

    def judge(self, current_s: float, candidate_s: float, switch_s: float, steps_left: int) -> Decision:
        """Whether the candidate is worth the switch. To be asked after `observe` said so.

        `current_s` and `candidate_s` are a step's predicted seconds under what is known now. Either way
        the next look has to gather its own evidence.
        """
        rule = self.rule
        self._ratios.clear()
        gain = 1 - candidate_s / current_s if current_s > 0 else 0.0
        saved = (current_s - candidate_s) * max(0, steps_left - rule.settle)
        if gain <= rule.min_gain:
            self._cooling = rule.window
            return Decision(False, f"the best other plan saves {gain:.0%}, {rule.min_gain:.0%} are asked for")
        if saved <= switch_s:
            self._cooling = rule.window
            return Decision(
                False, f"the switch costs {switch_s:.3g} s, {steps_left} steps save {saved:.3g} s"
            )
        self._cooling = rule.cool_down * 2**self.switches
        self._waiting = rule.settle
        self.switches += 1
        return Decision(True, f"saves {gain:.0%} of {current_s:.3g} s a step")

    def _is_off(self, ratios: deque[float]) -> bool:
        """Whether the window is full, its median off, and nearly all of it off the same way."""
        rule = self.rule
        if len(ratios) < rule.window or abs(median(ratios) - 1) <= rule.tolerance:
            return False
        slower = sum(ratio > 1 + rule.tolerance / 2 for ratio in ratios)
        faster = sum(ratio < 1 - rule.tolerance / 2 for ratio in ratios)
        return max(slower, faster) >= rule.agreeing * rule.window
