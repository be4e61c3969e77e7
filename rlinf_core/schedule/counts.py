"""Numbers of devices at which something changes: of all others one need not look at."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

FINE = 0.005  # relative change of a time between two numbers that is not looked into


def first_of_each(values: npt.NDArray[np.float64]) -> list[int]:
    """Of a sequence over 1, 2, ... where it takes a new value."""
    return [1, *(int(place) + 2 for place in np.flatnonzero(np.diff(values)))]


def refined(starts: Sequence[int], seconds: Callable[[int], float]) -> list[int]:
    """More numbers where the time goes on falling between two of them."""
    found = set(starts)
    waiting = [(one, two - 1) for one, two in itertools.pairwise(starts) if two - one > 1]
    while waiting:
        low, high = waiting.pop()
        if seconds(high) >= seconds(low) * (1 - FINE):
            continue
        middle = (low + high) // 2
        found |= {middle, high}
        if middle > low:
            waiting += [(low, middle), (middle, high - 1)]
    return sorted(found)
