"""Sharing rows between ranks and cutting micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.roles.batching import (
    mini_batches,
    padded_micro_batches,
    rank_micro_batches,
    row_tokens,
    shared_prompts,
)
from rlinf_core.types import Prompt, Sample, Trajectory


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


def alone(planned: list[list[list[int]]]) -> list[list[int]]:
    """What each rank has, of plans of one micro-batch a rank."""
    assert {len(batches) for batches in planned} == {1}
    return [batches[0] for batches in planned]


def test_rows_are_dealt_so_that_ranks_have_equal_costs() -> None:
    for groups in (None, range(5)):
        found = rank_micro_batches(range(5), [7, 5, 4, 4, 2], 2, 100, groups=groups)
        assert sorted(map(sorted, alone(found))) == [[0, 3], [1, 2, 4]]  # 11 and 11 tokens
        # by cost, one long row weighs as much as the four others
        costs = [40, 10, 10, 10, 10]
        found = rank_micro_batches(range(5), [7, 5, 4, 4, 2], 2, 100, costs=costs, groups=groups)
        assert sorted(map(sorted, alone(found))) == [[0], [1, 2, 3, 4]]


def test_groups_stay_together_for_the_sake_of_a_long_prompt() -> None:
    tokens, groups = [25, 21, 24, 22, 23, 23, 22, 24], [0, 0, 1, 1, 2, 2, 3, 3]
    shared = rank_micro_batches(range(8), tokens, 2, 1000, groups=groups, prompts=[20] * 8)
    assert all({i ^ 1 for i in rank} == set(rank) for rank in alone(shared))
    # three groups on two ranks: two prompts on one rank are less than two prompts on each of both
    found = rank_micro_batches(range(6), [21] * 6, 2, 1000, groups=[0, 0, 1, 1, 2, 2], prompts=[20] * 6)
    assert sorted(map(len, alone(found))) == [2, 4]
    # but with short prompts ranks of equal loads are faster
    found = rank_micro_batches(range(6), [21] * 6, 2, 1000, groups=[0, 0, 1, 1, 2, 2], prompts=[1] * 6)
    assert sorted(map(len, alone(found))) == [3, 3]


def test_a_shared_prompt_counts_once_in_a_micro_batch() -> None:
    # 100 tokens of a prompt and 10 of each response: 140 of four rows, not 440
    groups, prompts = [0] * 4 + [1] * 4, [100] * 8
    assert rank_micro_batches(range(8), [110] * 8, 1, 140, groups=groups, prompts=prompts) == [
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    ]
    # a group that is too large is cut
    found = rank_micro_batches(range(8), [110] * 8, 1, 120, groups=groups, prompts=prompts)[0]
    assert sorted(map(sorted, found)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


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


def test_rows_of_one_prompt_are_found_by_its_tokens() -> None:
    def sample(ids: list[int]) -> Sample:
        return Sample(
            group=0,
            replica=0,
            seed=0,
            mask=np.ones(2, dtype=bool),
            logprobs=np.zeros(2, dtype=np.float32),
            weight_version=0,
            prompt=Prompt(0, np.array(ids), ""),
            response_ids=np.array([1, 2]),
        )

    groups, prompts = shared_prompts({4: sample([1, 2, 3]), 7: sample([5]), 9: sample([1, 2, 3])})
    assert groups[4] == groups[9] != groups[7]
    assert prompts == {4: 3, 7: 1, 9: 3}
