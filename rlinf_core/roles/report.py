"""What training reports, and statistics of numbers that come in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MetricSums = dict[str, tuple[float, float]]


@dataclass
class TrainReport:
    """What one rank says of one step: sums to be added over ranks, and facts equal on all ranks."""

    sums: MetricSums = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest over ranks is reported


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
        self.count += values.numel()
        self.total += float(exact.sum())
        self.squares += float(exact.square().sum())
        self.low = min(self.low, float(exact.min()))
        self.high = max(self.high, float(exact.max()))

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
