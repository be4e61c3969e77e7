"""Rows leave in an order that timing does not change."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.comm.stream import Stream
from rlinf_core.roles.ordering import GroupOrder, Piece, Units, parted, unit_weight
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


def taken(units: Units, *names: str) -> list[list[str]]:
    chunks = [[row(*map(int, name.split("."))) for name in names_.split()] for names_ in names]
    return [[f"{r.group}.{r.replica}" for r in chunk] for chunk in units(Stream.of(chunks))]


def test_a_unit_leaves_when_it_is_whole_and_waits_for_no_other() -> None:
    units = Units(group_size=2, groups_per_step=4)
    assert taken(units, *ARRIVED) == [["13.0", "13.1"], ["12.0", "12.1"], ["14.0", "14.1"], ["15.0", "15.1"]]


def test_what_is_in_a_unit_does_not_depend_on_when_its_rows_come() -> None:
    units = Units(group_size=2, groups_per_step=5, groups=2)  # of groups 20 and 21, 22 and 23, 24
    whole = [["20.0", "20.1", "21.0", "21.1"], ["22.0", "22.1", "23.0", "23.1"], ["24.0", "24.1"]]
    late = "23.0 24.1 22.0 23.1", "20.1 21.0 22.1 24.0", "21.1 20.0"
    assert taken(units, *late) == [whole[1], whole[2], whole[0]]
    assert sorted(taken(units, *reversed(late))) == whole


def test_a_long_unit_leaves_in_pieces_that_weigh_as_much_together() -> None:
    """Each row has a decision and no prompt, so that a unit has as many tokens as rows."""
    units = Units(group_size=3, groups_per_step=2, groups=2, tokens=4)
    rows = [[row(4, i) for i in range(3)], [row(5, i) for i in range(3)]]
    chunks = list(units(Stream.of(rows)))
    assert [parted(chunk)[1] for chunk in chunks] == [Piece(0, 2), Piece(1, 2)]
    names = [[f"{r.group}.{r.replica}" for r in parted(chunk)[0]] for chunk in chunks]
    assert names == [["4.0", "4.1", "4.2", "5.0", "5.1", "5.2"]] * 2
    assert [unit_weight(chunk) for chunk in chunks] == [3.0, 3.0]
    (whole,) = Units(group_size=3, groups_per_step=2, groups=2, tokens=6)(Stream.of(rows))
    assert (parted(whole), unit_weight(whole)) == ((whole, Piece()), 6.0)
    many = Units(group_size=3, groups_per_step=2, groups=2, tokens=1)  # no more pieces than rows
    assert [parted(chunk)[1].count for chunk in many(Stream.of(rows))] == [6] * 6


def test_units_that_never_get_whole_come_at_the_end() -> None:
    units = Units(group_size=2, groups_per_step=4, groups=2)
    assert taken(units, "10.0 8.0", "10.1 9.1 9.0", "11.1") == [
        ["8.0", "9.0", "9.1"],
        ["10.0", "10.1", "11.1"],
    ]
