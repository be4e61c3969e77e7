"""Estimates with 95 % intervals, over problems that each have one or more responses.

Axes: P problems, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054  # the normal quantile of 97.5 %
RESAMPLES = 10_000
_AT_ONCE = 2_000_000  # numbers drawn at once


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much better one of two is on the same problems."""

    mean: float
    low: float
    high: float
    p: float  # of a difference as large or larger by chance alone
    better: int  # problems
    worse: int
    equal: int
    test: str  # which `p` is of


def wilson(successes: float, count: int) -> Estimate:
    """A share with Wilson's score interval (Wilson 1927), which holds for few problems and near 0 and 1."""
    share = successes / count
    scale = 1 + Z * Z / count
    center = (share + Z * Z / (2 * count)) / scale
    reach = Z / scale * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    low = 0.0 if successes == 0 else center - reach
    high = 1.0 if successes == count else center + reach
    return Estimate(share, low, high)


def rate(values: Sequence[Sequence[float]]) -> Estimate:
    """The mean of values between 0 and 1, several a problem: Wilson's interval where every problem is all or
    nothing, else as `average`, within 0 and 1."""
    found = average(values)
    means = [sum(each) / len(each) for each in values]
    if all(mean in (0.0, 1.0) for mean in means) and len({len(each) for each in values}) == 1:
        return wilson(sum(means), len(means))
    return Estimate(found.mean, max(0.0, found.low), min(1.0, found.high))


def bounded(values: Sequence[Sequence[float]]) -> Estimate:
    """`rate` where all values are between 0 and 1, else `average`."""
    within = all(0.0 <= value <= 1.0 for each in values for value in each)
    return rate(values) if within else average(values)


def average(values: Sequence[Sequence[float]]) -> Estimate:
    """The mean over all values. Those of one problem are not independent of each other, so the standard error
    is that between problems (clustered; Miller 2024, "Adding error bars to evals", section 3)."""
    sums = [math.fsum(each) for each in values]
    counts = [len(each) for each in values]
    problems, total = len(values), sum(counts)
    mean = math.fsum(sums) / total
    if problems < 2:
        return Estimate(mean, -math.inf, math.inf)
    squares = math.fsum((part - count * mean) ** 2 for part, count in zip(sums, counts, strict=True))
    error = math.sqrt(squares * problems / (problems - 1)) / total
    return Estimate(mean, mean - Z * error, mean + Z * error)


def pass_at_k(responses: int, right: int, k: int) -> float:
    """The chance that one of `k` responses is right, of which `responses` were drawn: the unbiased estimator
    of Chen et al. 2021, "Evaluating large language models trained on code", equation 1."""
    return 1.0 - math.comb(responses - right, k) / math.comb(responses, k)


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p-value of McNemar's test: problems that only one of two solves are as likely to be
    those of the one as of the other."""
    count = better + worse
    tail = sum(math.comb(count, i) for i in range(min(better, worse) + 1))
    return min(1.0, float(2 * tail / 2**count))


def paired(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Difference:
    """`second` less `first`, problem by problem, with the percentile interval of a paired bootstrap. Where
    every problem is all or nothing, `p` is McNemar's, else the bootstrap's."""
    differences_P = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    mean = float(differences_P.mean())
    means_B = _resampled(differences_P, seed)
    low, high = np.quantile(means_B, [0.025, 0.975])
    better, worse = int((differences_P > 0).sum()), int((differences_P < 0).sum())
    if set(first) | set(second) <= {0.0, 1.0}:
        test, p = "McNemar", mcnemar(better, worse)
    else:
        beyond = int((np.abs(means_B - mean) >= abs(mean) - 1e-12).sum())
        test, p = "bootstrap", (1 + beyond) / (1 + len(means_B))
    equal = len(differences_P) - better - worse
    return Difference(mean, float(low), float(high), p, better, worse, equal, test)


def _resampled(values_P: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Means of resamples of the problems."""
    generator, count = np.random.default_rng(seed), len(values_P)
    each = max(1, _AT_ONCE // count)
    parts = []
    for done in range(0, RESAMPLES, each):
        drawn = generator.integers(count, size=(min(each, RESAMPLES - done), count))
        parts.append(values_P[drawn].mean(1))
    return np.concatenate(parts)
