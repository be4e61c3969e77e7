"""The largest differencing method against hand-made runs of it and against every possible partition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlinf_core.roles.partition import partition


def heaviest(values: list[float], parts: list[list[int]]) -> float:
    return max(sum(values[i] for i in part) for part in parts)


def best(values: list[float], parts: int, counts: int | None = None) -> float:
    """The least heaviest part of all partitions, or of those with `counts` members each."""
    return min(
        max(sum(v for v, p in zip(values, owner, strict=True) if p == part) for part in range(parts))
        for owner in itertools.product(range(parts), repeat=len(values))
        if counts is None or all(owner.count(part) == counts for part in range(parts))
    )


def test_two_parts_by_hand() -> None:
    # 8-7 = 1, 6-5 = 1, 4-1 = 3, 3-1 = 2: 14 and 16, where the best would be 15 and 15
    assert partition([8, 7, 6, 5, 4], 2) == [[0, 2], [1, 3, 4]]


def test_three_parts_by_hand() -> None:
    # 8 | 7 | 6 differ by two; 5 | 4 | nothing differ by five; joined they are 8 | 7+4 | 6+5
    assert partition([8, 7, 6, 5, 4], 3) == [[0], [1, 4], [2, 3]]


def test_equal_counts_by_hand() -> None:
    # 9 | 1 and 1 | 1: one part has 9+1, though 9 alone would be better balanced
    assert partition([9, 1, 1, 1], 2, equal_counts=True) == [[0, 3], [1, 2]]
    assert partition([9, 1, 1, 1], 2) == [[0], [1, 2, 3]]


@pytest.mark.parametrize("seed", range(6))
def test_few_numbers_are_dealt_nearly_as_well_as_by_any_partition(seed: int) -> None:
    values = [float(value) for value in np.random.default_rng(seed).integers(1, 100, 8)]
    for parts in (2, 3):
        found = partition(values, parts)
        assert sorted(itertools.chain(*found)) == list(range(8))
        assert best(values, parts) <= heaviest(values, found) <= 1.08 * best(values, parts)
    found = partition(values, 2, equal_counts=True)
    assert [len(part) for part in found] == [4, 4]
    assert best(values, 2, 4) <= heaviest(values, found) <= 1.08 * best(values, 2, 4)


def test_many_numbers_are_dealt_to_within_a_thousandth() -> None:
    values = np.random.default_rng(0).lognormal(5, 1, 1000).tolist()
    for parts in (3, 16):
        found = partition(values, parts)
        assert sorted(itertools.chain(*found)) == list(range(1000))
        assert heaviest(values, found) <= 1.001 * sum(values) / parts
        counted = partition(values, parts, equal_counts=True)
        assert {len(part) for part in counted} <= {1000 // parts, 1000 // parts + 1}


def test_more_parts_than_numbers_leave_empty_ones_last() -> None:
    assert partition([5, 5], 4) == [[0], [1], [], []]
    assert partition([], 2) == [[], []]
    assert partition([1, 2, 3], 1) == [[0, 1, 2]]


def test_equal_numbers_are_dealt_the_same_way_each_time() -> None:
    assert partition([2] * 7, 3) == partition([2] * 7, 3)
    assert sorted(len(part) for part in partition([2] * 7, 3)) == [2, 2, 3]
