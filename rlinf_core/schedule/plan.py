"""A plan: where every component runs, how many samples travel at once, and what stays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["collocated", "disaggregated", "hybrid"]


@dataclass(frozen=True)
class Assignment:
    """One component's part of a plan."""

    devices: tuple[int, ...]  # rank order
    chunk: int = 0  # samples that leave it at once; 0 = no streaming, all at its end
    resident: bool = True  # stays in device memory while others use its devices
    model_parallel: int = 1
    micro_batch: int = 0  # samples of one call on one rank; 0 = as the settings say


@dataclass(frozen=True)
class Prediction:
    """What the planner expects of a plan."""

    step_s: float
    busy_s: Mapping[str, float] = field(default_factory=dict)  # component -> seconds of its slowest rank
    memory_bytes: float = 0.0  # of the fullest device
    bubble_ratio: float = 0.0  # idle share of device time


@dataclass(frozen=True)
class Plan:
    """A placement of all placed components.

    `stages` is the number of groups into which each environment rank cuts its environments, which
    take turns with the policy where the two sit apart.
    """

    assignments: Mapping[str, Assignment]
    stages: int = 1
    prediction: Prediction | None = None

    @property
    def mode(self) -> Mode:
        """`collocated`: all components sit on the same devices; `disaggregated`: there are sets of devices
        that do not overlap, each with one or more components; `hybrid`: anything between."""
        sets = list(dict.fromkeys(frozenset(part.devices) for part in self.assignments.values()))
        if len(sets) == 1:
            return "collocated"
        return "disaggregated" if sum(map(len, sets)) == len(frozenset().union(*sets)) else "hybrid"
