"""Sharing rows between ranks and cutting micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.roles.batching import (
    balanced_parts,
    mini_batches,
    padded_micro_batches,
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


def test_rows_are_dealt_so_that_ranks_have_equal_costs() -> None:
    assert balanced_parts(range(5), [7, 5, 4, 4, 2], 2) == [[0, 3], [1, 2, 4]]  # 11 and 11 tokens
    # by cost, one long row weighs as much as the four others
    assert balanced_parts(range(5), [40, 10, 10, 10, 10], 2) == [[0], [1, 2, 3, 4]]


def test_groups_stay_together_on_a_rank_unless_ranks_get_uneven() -> None:
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    assert balanced_parts(range(8), [5, 1, 4, 2, 3, 3, 2, 4], 2, groups) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    # three groups on two ranks: 12 against 6, so rows are dealt one by one
    found = balanced_parts(range(6), [3, 3, 3, 3, 3, 3], 2, groups)
    assert [len(part) for part in found] == [3, 3]


def test_padded_micro_batches_count_padded_tokens_not_real_ones() -> None:
    tokens = [10, 2, 9, 2]
    # sorted 10 9 2 2: 10+9 pads to 20, a third row would pad to 30
    assert padded_micro_batches(range(4), tokens, 20) == [[0, 2], [1, 3]]


def test_a_row_longer_than_the_budget_is_a_micro_batch_of_its_own() -> None:
    assert padded_micro_batches([0, 1, 2], [30, 3, 3], 8) == [[0], [1, 2]]
    assert rank_micro_batches([0, 1, 2], [30, 3, 3], 1, 8, groups=[0, 1, 2]) == [[[0], [1, 2]]]


def test_micro_batches_may_be_limited_in_rows_too() -> None:
    assert padded_micro_batches(range(5), [4, 4, 4, 4, 4], 100, most=2) == [[0, 1], [2, 3], [4]]
    assert rank_micro_batches(range(3), [4, 4, 4], ranks=1, budget=100, most=1) == [[[0], [1], [2]]]
    found = rank_micro_batches(range(5), [4, 4, 4, 4, 4], 1, 100, most=2, groups=[0, 0, 0, 0, 0])[0]
    assert sorted(len(batch) for batch in found) == [1, 2, 2]


def test_without_padding_micro_batches_count_real_tokens() -> None:
    # padded, 10 with any other row would be 20; 12 and 11 real tokens fit
    found = rank_micro_batches(range(4), [10, 2, 9, 2], 1, 12, groups=[0, 1, 2, 3])
    assert found == [[[0, 3], [1, 2]]]


def test_without_padding_no_micro_batch_is_larger_than_the_budget() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(60, 1000, 200).tolist()
    groups = [i // 8 for i in range(200)]
    cut = rank_micro_batches(range(200), tokens, 3, 4096, groups=groups)
    assert sorted(i for batches in cut for batch in batches for i in batch) == list(range(200))
    sizes = np.array([[sum(tokens[i] for i in batch) for batch in batches] for batches in cut])
    assert sizes.max() <= 4096
    assert sizes.shape[1] <= -(-sum(tokens) // 3 // 4096) + 2
    # ranks meet in every micro-batch, so these have to be even, not only their sums
    assert sizes.min() > 0.75 * sizes.max()


def test_rows_of_more_than_half_the_budget_are_alone() -> None:
    found = rank_micro_batches(range(4), [7, 7, 7, 3], 1, 10, groups=[0, 0, 0, 0])
    assert sorted(len(batch) for batch in found[0]) == [1, 1, 2]


def test_every_rank_runs_the_same_number_of_micro_batches() -> None:
    planned = rank_micro_batches([0, 1, 2], [8, 8, 8], ranks=2, budget=8)
    assert sorted(len(batches) for batches in planned) == [2, 2]
    assert sorted(i for batches in planned for batch in batches for i in batch) == [0, 1, 2]
    free = rank_micro_batches([0, 1, 2], [8, 8, 8], ranks=2, budget=8, groups=[0, 0, 0])
    assert sorted(len(batches) for batches in free) == [2, 2]


def test_a_rank_without_rows_still_takes_part() -> None:
    for groups in (None, [0]):
        assert rank_micro_batches([0], [4], ranks=3, budget=8, groups=groups) == [[[0]], [[]], [[]]]
        assert rank_micro_batches([], [4], ranks=2, budget=8, groups=groups) == [[[]], [[]]]


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
        rank_micro_batches([0], [1], 1, 0)
