"""What training reports, and statistics of numbers that come in parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MetricSums = dict[str, tuple[float, float]]
Shown = dict[tuple[int, int], dict[str, list[float]]]  # group, replica -> name -> a number a decision
SHOWN, LONGEST = 8, 2048  # rows that people are shown, and decisions of one


@dataclass
class TrainReport:
    """What one rank says of one step: sums to be added over ranks, and facts equal on all ranks.

    Where ranks share the parts of a step out among themselves, each part tells its own, by its number and
    that of its piece.
    """

    sums: MetricSums = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest over ranks is reported
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)
    shown: Shown = field(default_factory=dict)  # advantages of the first rows, for people


def show(known: Shown, more: Shown) -> None:
    """Take more rows; the first ones are kept, but for long ones."""
    known |= {
        row: found for row, found in more.items() if all(len(each) <= LONGEST for each in found.values())
    }
    for row in sorted(known)[SHOWN:]:
        del known[row]


def add(sums: MetricSums, name: str, total: float, count: float) -> None:
    """Add to a metric's sum and count."""
    before = sums.get(name, (0.0, 0.0))
    sums[name] = (before[0] + float(total), before[1] + float(count))


@dataclass
class Spread:
    """Mean, standard deviation and range of numbers that come in parts."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Tensor) -> None:
        """Take a part."""
        if not values.numel():
            return
        exact = values.double()
        self.join(
            Spread(
                values.numel(),
                float(exact.sum()),
                float(exact.square().sum()),
                float(exact.min()),
                float(exact.max()),
            )
        )

    def join(self, other: Spread) -> None:
        """Take what others have taken."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    def facts(self, name: str) -> dict[str, float]:
        """`NAME_mean`, `_std`, `_min` and `_max`; nothing of no number."""
        if not self.count:
            return {}
        mean = self.total / self.count
        deviation = math.sqrt(max(0.0, self.squares / self.count - mean * mean))
        return {
            f"{name}_mean": mean,
            f"{name}_std": deviation,
            f"{name}_min": self.low,
            f"{name}_max": self.high,
        }


@dataclass
class Part:
    """What training on some rows says, before it is averaged with that on others."""

    sums: MetricSums = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    facts: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # numbers, and of how many rows
    advantages: Spread = field(default_factory=Spread)

    def join(self, other: Part) -> None:
        """Take what another part says."""
        for name, (total, count) in other.sums.items():
            add(self.sums, name, total, count)
        for name, peak in other.peaks.items():
            self.peaks[name] = max(self.peaks.get(name, peak), peak)
        for name, found in other.facts.items():
            self.facts.setdefault(name, []).extend(found)
        self.advantages.join(other.advantages)

    def told(self) -> dict[str, float]:
        """Its facts, averaged."""
        return averages(self.facts) | self.advantages.facts("advantage")


def averages(facts: dict[str, list[tuple[float, int]]]) -> dict[str, float]:
    """Numbers of parts, averaged by their rows."""
    found = {}
    for name, parts in facts.items():
        rows = sum(count for _, count in parts)
        mean = sum(value * count for value, count in parts) / rows
        found[name] = parts[0][0] if len(parts) == 1 else mean
    return found


def joined(reports: Sequence[TrainReport]) -> list[TrainReport]:
    """The same with the parts of all ranks, in the order of their numbers, told by the first one: whichever
    rank had which."""
    parts = {number: part for report in reports for number, part in report.parts.items()}
    whole = Part()
    for number in sorted(parts):
        whole.join(parts[number])
    first, *others = (replace(report, parts={}) for report in reports)
    rest = Part(dict(first.sums), dict(first.peaks))
    rest.join(whole)
    return [TrainReport(rest.sums, first.facts | whole.told(), rest.peaks), *others]
