"""Intervals of producers, for any two world sizes."""

from __future__ import annotations

import itertools

from rlinf_core.comm.routing import interval_of, interval_sizes


def test_each_producer_has_one_consumer_near_it() -> None:
    assert [interval_of(i, 8, 3) for i in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [interval_of(i, 2, 4) for i in range(2)] == [0, 2]


def test_shares_differ_by_one_at_most_and_neighbours_stay_together() -> None:
    for sources, targets in itertools.product(range(1, 20), range(1, 12)):
        sizes = interval_sizes(sources, targets)
        assert sum(sizes) == sources
        assert max(sizes) - min(sizes) <= 1
        found = [interval_of(i, sources, targets) for i in range(sources)]
        assert found == sorted(found)
