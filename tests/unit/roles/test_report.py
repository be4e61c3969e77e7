"""What parts of a step say, put together again."""

from __future__ import annotations

import pytest
import torch

from rlinf_core.roles.report import LONGEST, Part, Shown, Spread, TrainReport, joined, show


def part(loss: float, rows: int, mean: float, *advantages: float) -> Part:
    spread = Spread()
    spread.add(torch.tensor(advantages))
    return Part({"loss": (loss, rows)}, {"gap": loss}, {"mean": [(mean, rows)]}, spread)


def test_parts_say_the_same_whoever_had_which() -> None:
    parts = {
        (8, 0): part(0.1, 1, 5.0, 1.0, -1.0),
        (3, 0): part(0.2, 3, 1.0, 2.0),
        (3, 1): part(0.7, 4, 2.0, 0.5, 0.25),
    }
    step = {"grad_norm": (2.0, 1.0)}
    facts = {"lr": 0.5}

    def told(*first: tuple[int, int]) -> list[TrainReport]:
        """By two ranks, of which one has these parts."""
        return joined(
            [
                TrainReport(
                    dict(step), dict(facts), parts={n: parts[n] for n in parts if (n in first) == mine}
                )
                for mine in (True, False)
            ]
        )

    whole, other = told((3, 0), (8, 0))
    assert whole.sums == {"grad_norm": (2.0, 1.0), "loss": ((0.2 + 0.7) + 0.1, 8.0)}
    assert whole.peaks == {"gap": 0.7}
    assert whole.facts["lr"] == 0.5
    assert whole.facts["mean"] == pytest.approx((1.0 * 3 + 2.0 * 4 + 5.0) / 8)
    assert (whole.facts["advantage_min"], whole.facts["advantage_max"]) == (-1.0, 2.0)
    assert whole.facts["advantage_mean"] == pytest.approx(2.75 / 5)
    assert (other.sums, other.facts, other.parts) == (step, facts, {})
    for first in ((), ((3, 1),), tuple(parts)):
        assert told(*first) == [whole, other]


def test_a_spread_of_parts_is_that_of_all() -> None:
    values = torch.tensor([3.0, -1.0, 2.5, 7.0, 0.25])
    whole, parts = Spread(), [Spread(), Spread()]
    whole.add(values)
    parts[0].add(values[:2])
    parts[1].add(values[2:])
    parts[0].join(parts[1])
    assert parts[0] == whole


def test_the_first_rows_are_shown_whatever_order_they_come_in() -> None:
    known: Shown = {}
    for group in (5, 0, 3, 9):
        show(known, {(group, replica): {"advantages": [float(group)]} for replica in range(3)})
    assert sorted(known) == [(0, 0), (0, 1), (0, 2), (3, 0), (3, 1), (3, 2), (5, 0), (5, 1)]
    show(known, {(1, 0): {"advantages": [0.0] * (LONGEST + 1)}})
    assert (1, 0) not in known
