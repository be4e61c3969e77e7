"""Sharing rows between ranks and cutting micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.roles.batching import (
    balanced_parts,
    micro_batches,
    mini_batches,
    rank_micro_batches,
    row_tokens,
)
from rlinf_core.types import Trajectory


def test_an_episode_weighs_its_decisions_whatever_the_level_of_its_logprobs() -> None:
    for each in (1, 6):
        row = Trajectory(
            group=0,
            replica=0,
            seed=0,
            mask=np.ones(4 * each, dtype=bool),
            logprobs=np.zeros(4 * each, dtype=np.float32),
            weight_version=0,
            observations={"state": np.zeros((4, 2), dtype=np.float32)},
            actions=np.zeros((4, 3, 2), dtype=np.float32),
        )
        assert row_tokens(row) == 4


def test_rows_are_dealt_longest_first_to_the_lightest_rank() -> None:
    assert balanced_parts([7, 5, 4, 4, 2], 2) == [[0, 3], [1, 2, 4]]  # 11 and 11 tokens


def test_micro_batches_count_padded_tokens_not_real_ones() -> None:
    weights = [10, 2, 9, 2]
    # sorted 10 9 2 2: 10+9 pads to 20, a third row would pad to 30
    assert micro_batches(range(4), weights, 20) == [[0, 2], [1, 3]]


def test_a_row_longer_than_the_budget_is_a_micro_batch_of_its_own() -> None:
    assert micro_batches([0, 1, 2], [30, 3, 3], 8) == [[0], [1, 2]]


def test_micro_batches_may_be_limited_in_rows_too() -> None:
    assert micro_batches(range(5), [4, 4, 4, 4, 4], 100, most=2) == [[0, 1], [2, 3], [4]]
    assert rank_micro_batches(range(3), [4, 4, 4], ranks=1, budget=100, most=1) == [[[0], [1], [2]]]


def test_every_rank_runs_the_same_number_of_micro_batches() -> None:
    planned = rank_micro_batches([0, 1, 2], [8, 8, 8], ranks=2, budget=8)
    assert planned == [[[0], [2]], [[1], []]]


def test_a_rank_without_rows_still_takes_part() -> None:
    assert rank_micro_batches([0], [4], ranks=3, budget=8) == [[[0]], [[]], [[]]]
    assert rank_micro_batches([], [4], ranks=2, budget=8) == [[[]], [[]]]


def test_mini_batches_cover_every_row_once_and_differ_by_seed() -> None:
    first, second = mini_batches(10, 3, seed=1), mini_batches(10, 3, seed=2)
    assert sorted(row for part in first for row in part) == list(range(10))
    assert sorted(len(part) for part in first) == [3, 3, 4]
    assert first != second
    assert first == mini_batches(10, 3, seed=1)


def test_one_mini_batch_is_not_shuffled() -> None:
    assert mini_batches(4, 1, seed=9) == [[0, 1, 2, 3]]


def test_a_budget_below_one_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"train\.micro_batch_tokens"):
        micro_batches([0], [1], 0)
