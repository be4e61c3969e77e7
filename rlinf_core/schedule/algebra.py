"""When a part of a plan gives its first and its last samples, from when it is given them.

Four numbers describe a part: seconds from the first (a) and from the last (b) samples that come in to
the first that go out, and likewise (c, d) to the last that go out. Out = max over in + seconds. All
functions take numbers or arrays, and never fall when one of their arguments rises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]

NEVER = -np.inf  # the first output does not wait for the last input


class Times(NamedTuple):
    """The four numbers; `c` is how long the part takes with all its input at hand."""

    a: Seconds
    b: Seconds
    c: Seconds
    d: Seconds


def leaf(early: Seconds, late: Seconds, waits: bool, share: float, switch: Seconds) -> Times:
    """Components that work through all samples in chunks of a `share` of them: the `early` ones as they
    come, the `late` ones (if it `waits`) when all are there."""
    total = early + late + switch
    if share >= 1.0:
        return Times(total, total, total, total)
    if not waits:
        first = share * early + switch
        return Times(first, np.full_like(first, NEVER), total, first)
    last = share * (early + late) + switch
    return Times(early + share * late + switch, last, total, share * early + late + switch)


def after(first: Times, second: Times, beside: float) -> Times:
    """`second` begins when `first` has ended; `beside` is work of others between them."""
    ended, last = first.c + beside, first.d + beside
    return Times(ended + second.a, last + second.a, ended + second.c, last + second.c)


def along(first: Times, second: Times, way: float, share: float) -> Times:
    """`second` takes what `first` gives, which is `way` seconds in all on its way, a `share` at once."""
    a, b = first.a + share * way, first.b + share * way
    c = np.maximum(first.a + way, first.c + share * way)
    d = np.maximum(first.b + way, first.d + share * way)
    return Times(
        np.maximum(second.a + a, second.b + c),
        np.maximum(second.a + b, second.b + d),
        np.maximum(second.c + a, second.d + c),
        np.maximum(second.c + b, second.d + d),
    )


def beside(first: Times, second: Times) -> Times:
    """Both at the same time, neither taking from the other."""
    return Times(*(np.maximum(one, other) for one, other in zip(first, second, strict=True)))


def delayed(times: Times, seconds: float) -> Times:
    """The same, some seconds later."""
    return Times(times.a + seconds, times.b, times.c + seconds, times.d)


def seen(times: Times, takes: bool, gives: bool) -> Times:
    """Without what nobody sees: inputs of a part that takes nothing, outputs of one that gives nothing."""
    a, b, c, d = times
    if not gives:
        a, b = np.zeros_like(a), np.full_like(b, NEVER)
    if not takes:
        b, d = np.full_like(b, NEVER), np.zeros_like(d)
    return Times(a, b, c, d)
