"""Which consumer a producer talks to where there are more of the one than of the other."""

from __future__ import annotations


def interval_of(source: int, sources: int, targets: int) -> int:
    """The target of one of `sources` numbered producers: neighbours share one, shares differ by at most one.

    >>> [interval_of(source, 5, 2) for source in range(5)]
    [0, 0, 0, 1, 1]
    """
    return source * targets // sources


def interval_sizes(sources: int, targets: int) -> list[int]:
    """How many of `sources` producers each target has.

    >>> interval_sizes(5, 2)
    [3, 2]
    """
    sizes = [0] * targets
    for source in range(sources):
        sizes[interval_of(source, sources, targets)] += 1
    return sizes
