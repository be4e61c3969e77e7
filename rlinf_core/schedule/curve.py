"""How long a component takes on any number of devices, from a few measurements or written by hand.

A rank works on n = ceil(samples / ranks) samples, in k = ceil(n / chunk) calls:

    seconds = fixed + per_sample * n + per_call * k + parallel * [more than one rank]
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlinf_core.errors import ConfigError

LEAST_S = 1e-6  # a shorter measurement is the clock's
FIT_WEIGHT = 1.0  # of the bare fit among the measured ratios: as much as a measurement e times away

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """What one rank has to do: its samples, in how many calls, on how many devices in all."""

    samples: int
    calls: int
    ranks: int
    devices: int
    total: int  # samples over all ranks

    @property
    def row(self) -> tuple[float, float, float, float]:
        """What the four coefficients are multiplied with."""
        return (1.0, float(self.samples), float(self.calls), float(self.ranks > 1))


class Law(Protocol):
    """Seconds of a piece of work."""

    def seconds(self, work: Work) -> float: ...

    def scaled(self, factor: float) -> Law: ...


@dataclass(frozen=True)
class Coefficients:
    """The four terms."""

    fixed_s: float = 0.0
    per_sample_s: float = 0.0
    per_call_s: float = 0.0
    parallel_s: float = 0.0

    def seconds(self, work: Work) -> float:
        """The formula above."""
        fixed, per_sample, calls, parallel = work.row
        return (
            self.fixed_s * fixed
            + self.per_sample_s * per_sample
            + self.per_call_s * calls
            + self.parallel_s * parallel
        )

    def scaled(self, factor: float) -> Coefficients:
        """All terms `factor` times as long."""
        return Coefficients(
            self.fixed_s * factor,
            self.per_sample_s * factor,
            self.per_call_s * factor,
            self.parallel_s * factor,
        )


@dataclass(frozen=True)
class Table:
    """Seconds for `samples` samples by number of devices, for clusters that one does not have.

    Between two counts a power law; below the smallest as if devices were all that counts, above the
    largest no faster. Other numbers of samples in proportion.
    """

    samples: int
    by_devices: tuple[tuple[int, float], ...]  # rising counts

    def seconds(self, work: Work) -> float:
        """Interpolated seconds."""
        at = math.exp(float(np.interp(math.log(work.devices), *self._logs)))
        return at * max(1.0, self.by_devices[0][0] / work.devices) * work.total / self.samples

    @cached_property
    def _logs(self) -> tuple[Vector, Vector]:
        counts, times = zip(*self.by_devices, strict=True)
        return np.log(counts), np.log(np.maximum(times, LEAST_S))

    def scaled(self, factor: float) -> Table:
        """All times `factor` times as long."""
        return replace(self, by_devices=tuple((count, s * factor) for count, s in self.by_devices))


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients, corrected near the measured points so that those are met exactly.

    The correction is the ratio measured / fitted, averaged over the points with the inverse square of
    their distance in log(samples of a rank) and log(calls); far away it goes to 1. One rank and several
    are corrected apart. So the time is a function of `Work.row` alone.
    """

    coefficients: Coefficients
    ratios: tuple[tuple[tuple[float, float, float], float], ...]  # (log n, log k, [parallel]) -> ratio
    residual: float  # relative root mean square of the bare fit

    def seconds(self, work: Work) -> float:
        """Corrected fit."""
        _, samples, calls, parallel = work.row
        log_n, log_k = math.log(samples), math.log(calls)
        total, weights = FIT_WEIGHT, FIT_WEIGHT
        for (at_n, at_k, at_parallel), ratio in self.ratios:
            if at_parallel != parallel:
                continue
            distance = (at_n - log_n) ** 2 + (at_k - log_k) ** 2
            if distance < 1e-12:
                total, weights = ratio, 1.0
                break
            total, weights = total + ratio / distance, weights + 1 / distance
        return self.coefficients.seconds(work) * total / weights

    def scaled(self, factor: float) -> Fit:
        """All times `factor` times as long."""
        return replace(self, coefficients=self.coefficients.scaled(factor))


@dataclass(frozen=True)
class Curve:
    """Seconds of one component on one type of device, by model-parallel size.

    A size that was not measured is taken from the nearest measured one as if only the number of devices
    counted: a hopeful guess, which a run corrects by measuring.
    """

    laws: Mapping[int, Law]

    @property
    def residual(self) -> float:
        """The largest relative root mean square of the fits; 0 for what was written by hand."""
        return max((law.residual for law in self.laws.values() if isinstance(law, Fit)), default=0.0)

    def seconds(self, samples: int, devices: int, chunk: int = 0, model_parallel: int = 1) -> float:
        """Of the slowest rank, for all samples of a step, `chunk` of them in one call (0 = all).

        Raises `ConfigError` for fewer devices than one model-parallel group needs.
        """
        ranks = devices // model_parallel
        if ranks < 1:
            raise ConfigError(f"{devices} devices cannot hold a model that is split over {model_parallel}")
        if samples < 1:
            return 0.0
        known = min(self.laws, key=lambda size: (abs(math.log(size / model_parallel)), size))
        ratio = known / model_parallel
        share = math.ceil(samples * ratio / ranks - 1e-9)
        calls = math.ceil(share / (chunk * ratio) - 1e-9) if chunk else 1
        return self.laws[known].seconds(Work(share, calls, ranks, devices, samples))


def work_of(samples: int, devices: int, chunk: int = 0, model_parallel: int = 1) -> Work:
    """The work of one rank."""
    ranks = max(1, devices // model_parallel)
    share = math.ceil(samples / ranks)
    return Work(share, math.ceil(share / chunk) if chunk else 1, ranks, devices, samples)


def fit(measured: Sequence[tuple[Work, float]]) -> Fit:
    """Non-negative least squares of relative residuals, over medians of repeated measurements.

    Terms join in the order per sample, fixed, parallel, per call, each only where the measurements tell it
    from those before: from a single measurement follows time in proportion to the samples of a rank.
    """
    repeated: dict[tuple[float, float, float, float], list[float]] = defaultdict(list)
    for work, seconds in measured:
        repeated[work.row].append(max(seconds, LEAST_S))
    rows = np.array(list(repeated))
    times = np.array([median(group) for group in repeated.values()])
    relative = rows / times[:, None]
    terms = _told_apart(relative)
    values = np.zeros(4)
    values[terms] = _non_negative(relative[:, terms])
    fitted = rows @ values
    residual = float(np.sqrt(np.mean((fitted / times - 1) ** 2)))
    ratios = tuple(
        ((math.log(row[1]), math.log(row[2]), float(row[3])), float(time / at))
        for row, time, at in zip(rows, times, fitted, strict=True)
    )
    return Fit(Coefficients(*map(float, values)), ratios, residual)


def _told_apart(relative: Vector) -> list[int]:
    """Columns that the rows can tell from each other."""
    chosen: list[int] = []
    for column in (1, 0, 3, 2):
        tried = relative[:, [*chosen, column]]
        lengths = np.linalg.norm(tried, axis=0)
        if lengths[-1] > 0 and np.linalg.matrix_rank(tried / lengths, tol=1e-6) > len(chosen):
            chosen.append(column)
    return sorted(chosen)


def _non_negative(relative: Vector) -> Vector:
    """x >= 0 with the least |relative x - 1|: the best of the unconstrained solutions on all supports."""
    columns = relative.shape[1]
    best, least = np.zeros(columns), math.inf
    for size in range(1, columns + 1):
        for support in map(list, combinations(range(columns), size)):
            solution = np.linalg.lstsq(relative[:, support], np.ones(len(relative)), rcond=None)[0]
            error = float(np.sum((relative[:, support] @ solution - 1) ** 2))
            if (solution >= 0).all() and error < least - 1e-15:
                best, least = np.zeros(columns), error
                best[support] = solution
    return best
