"""Samples on their way: how many are there, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wave:
    """Samples that are there from a moment on; `total` counts those before them too."""

    total: int
    at: float


def cut(samples: int, chunk: int, at: float) -> list[Wave]:
    """All samples at hand, in chunks of a size (0 = in one)."""
    size = chunk or samples
    return [Wave(min(samples, size * (n + 1)), at) for n in range(max(1, math.ceil(samples / size)))]


def steps(waves: Sequence[Wave]) -> list[tuple[int, Wave]]:
    """Every wave with the samples before it."""
    return list(zip([0, *(wave.total for wave in waves[:-1])], waves, strict=True))


def merged(inputs: Sequence[Sequence[Wave]]) -> list[Wave]:
    """What is there of all inputs, and when."""
    moments: dict[float, int] = {}
    for total in sorted({wave.total for waves in inputs for wave in waves}):
        at = max(next(one.at for one in waves if one.total >= total) for waves in inputs)
        moments[at] = total
    return [Wave(total, at) for at, total in moments.items()]
