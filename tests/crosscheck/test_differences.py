"""What is done differently is documented with both numbers, and both are right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from crosscheck_cases_trl import CASES as TRL
from crosscheck_cases_verl import CASES as VERL
from crosscheck_examples import Case
from crosscheck_paths import PAGE, peer

CASES = {("verl", name): case for name, case in VERL.items()} | {
    ("TRL", name): case for name, case in TRL.items()
}
ROW = re.compile(r"^\| (verl|TRL) \| ([^|]+) \| `([^|`]+)` \| `([^|`]+)` \|", re.MULTILINE)


class Documented(NamedTuple):
    """The numbers of one row, or the names of what is raised."""

    ours: str
    theirs: str


def documented() -> Iterator[tuple[tuple[str, str], Documented]]:
    for who, name, ours, theirs in ROW.findall(PAGE.read_text()):
        yield (who, name), Documented(ours, theirs)


PAGE_ROWS = dict(documented())
SELECTED = pytest.mark.parametrize("key", CASES, ids=" ".join)


def check(number, text):
    """`number()` is what `text` says, to its last digit."""
    if text.endswith("Error"):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            number()
        assert raised.type.__name__ == text
        return
    found, wanted = float(number()), float(text)
    assert (math.isnan(found) and math.isnan(wanted)) or float(f"{found:.5g}") == wanted


def test_every_difference_is_documented_and_every_documented_one_is_tested():
    assert PAGE_ROWS.keys() == CASES.keys()


def test_both_numbers_of_a_difference_differ():
    assert [key for key, row in PAGE_ROWS.items() if row.ours == row.theirs] == []


@SELECTED
@pytest.mark.filterwarnings("ignore:grpo|rloo:RuntimeWarning")
def test_our_number_is_the_documented_one(key):
    check(CASES[key].ours, PAGE_ROWS[key].ours)


@SELECTED
def test_the_number_of_the_peer_is_the_documented_one(key):
    module = peer(key[0].lower())
    case: Case = CASES[key]
    check(lambda: case.theirs(module), PAGE_ROWS[key].theirs)
