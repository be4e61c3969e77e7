"""Rows leave in an order that timing does not change."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.comm.stream import Stream
from rlinf_core.roles.ordering import GroupOrder
from rlinf_core.types import Experience


def row(group: int, replica: int) -> Experience:
    return Experience(
        group=group,
        replica=replica,
        seed=0,
        mask=np.ones(1, dtype=bool),
        logprobs=np.zeros(1, dtype=np.float32),
        weight_version=0,
    )


def ordered(order: GroupOrder, *names: str) -> list[list[str]]:
    """Chunks by name: `12.0` is replica 0 of group 12; spaces part the chunks that come."""
    chunks = [[row(*map(int, name.split("."))) for name in names_.split()] for names_ in names]
    return [[f"{r.group}.{r.replica}" for r in chunk] for chunk in order(Stream.of(chunks))]


ARRIVED = ("13.1 12.0", "14.0 13.0", "12.1", "14.1 15.1 15.0")


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (0, [["12.0", "12.1", "13.0", "13.1", "14.0", "14.1", "15.0", "15.1"]]),
        (2, [["12.0", "12.1", "13.0", "13.1"][:2], ["13.0", "13.1"], ["14.0", "14.1"], ["15.0", "15.1"]]),
        (3, [["12.0", "12.1", "13.0", "13.1"], ["14.0", "14.1", "15.0", "15.1"]]),
    ],
)
def test_whole_groups_leave_in_their_order(chunk: int, expected: list[list[str]]) -> None:
    assert ordered(GroupOrder(group_size=2, groups_per_step=4, chunk=chunk), *ARRIVED) == expected


def test_groups_that_never_get_whole_come_at_the_end() -> None:
    order = GroupOrder(group_size=2, groups_per_step=4, chunk=2)
    assert ordered(order, "9.0 10.0", "10.1", "8.1") == [["8.1", "9.0", "10.0", "10.1"]]


def test_nothing_comes_of_nothing() -> None:
    assert ordered(GroupOrder(2, 4, 2)) == []
