"""Numbers dealt to parts of near equal sums, by the largest differencing method.

Karmarkar and Karp, "The differencing method of set partitioning" (1982), in its form for any number of parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

Part = tuple[float, Any]  # a sum and its members: nested pairs of positions
# Some numbers dealt to all parts: what is still to be made up for, negated; when it was made; the parts that
# are not empty, heaviest first.
Split = tuple[float, int, list[Part]]


def partition(values: Sequence[float], parts: int, *, equal_counts: bool = False) -> list[list[int]]:
    """Positions of each part, ascending; parts by their first position, empty ones last.

    The two splits that differ most are joined, the heaviest part of one with the lightest of the other,
    until one is left. With `equal_counts`, numbers of members differ by one at most. The same values always
    give the same parts.
    """
    if parts == 1:
        return [list(range(len(values)))]
    if parts >= len(values):
        return [[i] for i in range(len(values))] + [[] for _ in range(parts - len(values))]
    ordered: list[Part] = sorted(((value, i) for i, value in enumerate(values)), key=lambda p: (-p[0], p[1]))
    size = parts if equal_counts else 1
    blocks = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
    heap = [_split(block, parts, number) for number, block in enumerate(blocks)]
    heapq.heapify(heap)
    for number in range(len(heap), 2 * len(heap) - 1):
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, _split(_joined(first[2], second[2], parts), parts, number))
    found = sorted(sorted(_flat(members)) for _, members in heap[0][2])
    return found + [[] for _ in range(parts - len(found))]


def _split(dealt: list[Part], parts: int, number: int) -> Split:
    lightest = dealt[-1][0] if len(dealt) == parts else 0.0
    return lightest - dealt[0][0], number, dealt


def _joined(first: list[Part], second: list[Part], parts: int) -> list[Part]:
    """The heaviest of `first` with the lightest of `second`, of which there are empty ones first."""
    apart = parts - len(second)
    pairs = list(zip(first[apart:], reversed(second), strict=False))
    both = [(a + b, (these, those)) for (a, these), (b, those) in pairs]
    alone = [*first[:apart], *second[: len(second) - len(pairs)]]
    return sorted(alone + both, key=lambda part: -part[0])


def _flat(members: Any) -> Iterator[int]:
    stack = [members]
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            stack += top
        else:
            yield top
