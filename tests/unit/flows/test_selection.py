"""Which groups are asked for, kept and trained on, round by round; worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rlinf_core.api import Advantages, Algorithm, AlgorithmNeeds, LossTerms
from rlinf_core.comm.stream import Stream
from rlinf_core.errors import SelectionError
from rlinf_core.flows.flow import Requests
from rlinf_core.flows.selection import Selected, Selection
from rlinf_core.types import Experience

FIRST = 40  # the number of the step's first group


class Differing(Algorithm):
    """Keeps groups whose rewards differ."""

    @property
    def needs(self) -> AlgorithmNeeds:
        return AlgorithmNeeds(group_size=self.config[0], max_rounds=self.config[1])

    def advantages(self, batch: Any) -> Advantages:
        raise AssertionError

    def denominator(self, mask_BT: Any) -> float:
        raise AssertionError

    def loss(self, outputs: Any, batch: Any) -> LossTerms:
        raise AssertionError

    def keep(self, group: Sequence[Experience]) -> bool:
        assert all(row.error is None for row in group)
        return len({row.reward for row in group}) > 1 or self.config[0] == 1


@dataclass
class Game:
    """Plays groups, of which some are good and some have errors; all others have equal rewards."""

    good: Sequence[int]
    errors: Mapping[int, int] = field(default_factory=dict)  # group -> rows that cannot be scored
    size: int = 2
    rounds: list[int] = field(default_factory=list)  # groups asked for

    def gather(self, groups: int, max_rounds: int = 5) -> Selected:
        requests = Requests(lambda asked, count: [[n] for n in range(asked, asked + count)], groups)
        return Selection(Differing((self.size, max_rounds)), "picky", groups).gather(requests, self.play)

    def play(self, stream: Stream, earlier: Sequence[list[Any]]) -> tuple[list[Experience], list[Any]]:
        numbers = stream.collect()
        assert earlier == [[count] for count in self.rounds]
        self.rounds.append(len(numbers))
        rows = [self._row(number, replica) for number in numbers for replica in range(self.size)]
        return rows[::-1], [len(numbers)]

    def _row(self, number: int, replica: int) -> Experience:
        failed = replica < self.errors.get(number, 0)
        return Experience(
            group=FIRST + number,
            replica=replica,
            seed=0,
            mask=np.ones(1, dtype=bool),
            logprobs=np.zeros(1, dtype=np.float32),
            weight_version=0,
            reward=None if failed else float(replica if number in self.good else 0),
            error="no" if failed else None,
        )


def kept(selected: Selected) -> list[tuple[int, int]]:
    return [(row.group - FIRST, row.replica) for row in selected.kept]


def test_one_round_is_enough_where_every_group_is_kept() -> None:
    game = Game(good=range(4))
    selected = game.gather(4)
    assert game.rounds == [4]
    assert kept(selected) == [(n, r) for n in range(4) for r in range(2)]
    assert selected.rows == selected.kept
    assert selected.metrics == {
        "train/rounds": 1.0,
        "train/drawn_groups": 4.0,
        "train/kept_share": 1.0,
        "train/zero_variance_groups": 0.0,
        "train/trained_samples": 8.0,
    }


def test_later_rounds_ask_for_what_should_be_enough() -> None:
    """2 of 6 are kept, so 4 missing ones need 12, but no more than 6 at once; then 5 of 12: 1 needs
    ceil(12/5) = 3."""
    game = Game(good=(1, 4, 6, 8, 10, 13))
    selected = game.gather(6)
    assert game.rounds == [6, 6, 3]
    assert [group for group, replica in kept(selected) if not replica] == [1, 4, 6, 8, 10, 13]
    assert [row.group for row in selected.rows] == [FIRST + n for n in range(15) for _ in range(2)]
    assert selected.results == [[6], [6], [3]]
    assert selected.metrics["train/drawn_groups"] == 15
    assert selected.metrics["train/kept_share"] == pytest.approx(6 / 15)
    assert selected.metrics["train/zero_variance_groups"] == pytest.approx(9 / 15)
    assert selected.metrics["train/trained_samples"] == 12


def test_the_last_ones_in_order_are_too_many() -> None:
    """2 of 3 are kept; one more needs ceil(3/2) = 2, and both are good."""
    game = Game(good=range(1, 9))
    selected = game.gather(3)
    assert game.rounds == [3, 2]
    assert [group for group, replica in kept(selected) if not replica] == [1, 2, 3]
    assert len(selected.rows) == 10
    assert selected.metrics["train/kept_share"] == pytest.approx(4 / 5)


def test_nothing_kept_asks_for_as_many_again() -> None:
    game = Game(good=(7, 8, 9, 10, 11))
    game.gather(4)
    assert game.rounds == [4, 4, 4]


def test_a_group_needs_two_rows_with_a_reward() -> None:
    """Of groups of three, one with two failures is rejected, one with one failure is kept as it is."""
    game = Game(good=range(9), errors={0: 2, 1: 1, 2: 3}, size=3)
    selected = game.gather(2)
    assert [group for group, replica in kept(selected) if not replica] == [1, 3]
    assert selected.metrics["train/trained_samples"] == 5
    assert selected.metrics["train/zero_variance_groups"] == pytest.approx(1 / 3)  # 0; 2 has no reward


def test_a_group_of_one_needs_one_row_with_a_reward() -> None:
    selected = Game(good=(), errors={0: 1}, size=1).gather(2)
    assert kept(selected) == [(1, 0), (2, 0)]


def test_too_many_rounds_are_an_error_with_the_numbers() -> None:
    game = Game(good=(2,), errors={5: 1})
    with pytest.raises(SelectionError) as caught:
        game.gather(4, max_rounds=3)
    assert game.rounds == [4, 4, 4]
    text = str(caught.value)
    assert text.startswith(
        "algo: 'picky' kept 1 of 12 groups (12 prompts in 3 rounds), and a step trains on 4; 11 of the "
        "groups had equal rewards, and their mean reward was 0.0435."  # 1 of 23
    )
    assert "train.prompts_per_step" in text
    assert "rlinf plugins show picky" in text


def test_the_last_round_may_fill_the_step() -> None:
    assert Game(good=(2, 5)).gather(2, max_rounds=3).metrics["train/rounds"] == 3


def test_a_change_of_the_first_groups_leaves_those_of_later_rounds() -> None:
    requests = Requests(lambda asked, count: [[n] for n in range(asked, asked + count)], 2)
    changed = requests.with_first(lambda groups: [[10 * n for n in group] for group in groups])
    assert changed.first().collect() == [0, 10]
    assert changed.more(2).collect() == [2, 3]
