"""DAPO against tables and numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rlinf_algo_dapo.algorithm import DAPO, overlong
from rlinf_algo_dapo.config import DAPOConfig
from rlinf_algo_dapo.plugin import needs

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.errors import ConfigError
from rlinf_core.types import Experience

LENGTHS = [5, 3, 4, 2, 5, 5, 1, 3]
MASK = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]


def row(reward: float | None, parts: dict[str, float] | None = None, error: str | None = None) -> Experience:
    return Experience(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(2, bool),
        logprobs=np.zeros(2, np.float32),
        weight_version=0,
        reward=reward,
        reward_parts=parts or {},
        error=error,
    )


def scored(rewards: list[float], **columns: Any) -> ScoredBatch:
    values: dict[str, Any] = {
        "rewards_B": torch.tensor(rewards),
        "groups_B": torch.tensor([0] * 4 + [1] * 4),
        "mask_BT": MASK,
        "logprobs_BT": torch.zeros(8, 5),
        "truncated_B": torch.tensor([True] + [False] * 7),
        "max_length": 5,
    }
    return ScoredBatch(**{**values, **columns})


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0.0),
        (16384, 0.0),
        (16385, 1 / 4096),
        (18432, 0.5),
        (20479, 4095 / 4096),
        (20480, 1.0),
        (20481, 1.0),
    ],
)
def test_the_overlong_punishment_is_the_table_of_the_paper(length: int, expected: float) -> None:
    assert overlong(torch.tensor([length]), 20480, 4096).item() == pytest.approx(expected, abs=1e-7)


def test_overlong_responses_lose_reward_by_the_sum_of_their_mask() -> None:
    """Longest 5, buffer 3: lengths 5, 3, 4, 2 lose 1, 1/3, 2/3, 0 times the penalty 0.6.

    Rewards 1, 0, 1, .5 become .4, -.2, .6, .5 with mean .325 and, of the deviations .075, -.525, .275,
    .175, the sample variance (.005625 + .275625 + .075625 + .030625) / 3 = .129167, std .359398. The
    other group, all 1 with lengths 5, 5, 1, 3, becomes .4, .4, 1, .8: mean .65, deviations -.25, -.25,
    .35, .15, variance .27 / 3 = .09, std .3.
    """
    algorithm = DAPO(DAPOConfig(group_size=4, overlong_buffer=3, overlong_penalty=0.6))
    result = algorithm.advantages(scored([1, 0, 1, 0.5, 1, 1, 1, 1]))
    first = [0.075 / 0.359398, -0.525 / 0.359398, 0.275 / 0.359398, 0.175 / 0.359398]
    second = [-0.25 / 0.3, -0.25 / 0.3, 0.35 / 0.3, 0.15 / 0.3]
    expected = torch.tensor(first + second)[:, None] * MASK
    torch.testing.assert_close(result.advantages_BT, expected, rtol=1e-4, atol=1e-5)
    assert result.metrics["overlong"] == (6.0, 8.0)  # longer than 2: all but lengths 2 and 1
    total, count = result.metrics["overlong_penalty"]  # type: ignore[misc]
    assert (total, count) == (pytest.approx(0.6 * (1 + 1 / 3 + 2 / 3 + 0 + 1 + 1 + 0 + 1 / 3)), 8.0)
    assert result.metrics["zero_variance_groups"] == (0.0, 2.0)


def test_a_gap_in_the_mask_does_not_count_as_length() -> None:
    mask_BT = torch.tensor([[True, False, False, True, True], [True, True, True, True, True]])
    batch = scored([1.0, 1.0], groups_B=torch.zeros(2, dtype=torch.int64), mask_BT=mask_BT)
    batch.truncated_B = torch.zeros(2, dtype=torch.bool)
    result = DAPO(DAPOConfig(overlong_buffer=2)).advantages(batch)
    assert result.metrics["overlong"] == (1.0, 2.0)
    assert result.metrics["overlong_penalty"] == (1.0, 2.0)


def test_without_a_buffer_the_advantages_are_those_of_the_group() -> None:
    result = DAPO(DAPOConfig(group_size=4)).advantages(scored([1, 0, 1, 0.5, 1, 1, 1, 1], max_length=0))
    expected = torch.tensor([0.783348, -1.305580, 0.783348, -0.261116, 0, 0, 0, 0])
    torch.testing.assert_close(result.advantages_BT, expected[:, None] * MASK, atol=1e-6, rtol=0)
    assert "overlong" not in result.metrics


def test_cut_responses_are_left_out_but_count_in_the_group() -> None:
    result = DAPO(DAPOConfig(group_size=4, mask_truncated=True)).advantages(
        scored([1, 0, 1, 0.5, 1, 1, 1, 1])
    )
    assert result.mask_BT is not None
    assert result.mask_BT.any(-1).tolist() == [False] + [True] * 7
    assert result.advantages_BT[2, 0].item() == pytest.approx(0.783348, abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([1.0, 1.0, 1.0], False),
        ([0.0, 0.0, 1e-6], True),
        ([0.5, 0.5, None], False),
        ([1.0, None, None], False),
    ],
)
def test_a_group_is_kept_if_the_rewards_of_its_scored_rows_differ(
    rewards: list[float | None], kept: bool
) -> None:
    group = [row(reward, error=None if reward is not None else "timeout") for reward in rewards]
    assert DAPO(DAPOConfig()).keep(group) is kept


def test_groups_are_judged_by_the_raw_reward_not_by_the_punished_one() -> None:
    group = [row(1.0) for _ in range(4)]
    group[0].mask = np.ones(50, bool)
    assert not DAPO(DAPOConfig(overlong_buffer=4)).keep(group)


def test_the_filter_looks_at_the_part_that_is_named() -> None:
    algorithm = DAPO(DAPOConfig(filter_metric="exact"))
    same = [row(1.0, {"exact": 1.0, "length": 0.0}), row(0.7, {"exact": 1.0, "length": -0.3})]
    assert not algorithm.keep(same)
    assert DAPO(DAPOConfig()).keep(same)
    assert algorithm.keep([row(1.0, {"exact": 1.0}), row(1.0, {"exact": 0.0})])
    with pytest.raises(ConfigError, match="no reward of that name; there are: format, math"):
        algorithm.keep([row(1.0, {"math": 1.0, "format": 0.0})])


def test_the_clip_is_wider_above_and_the_mean_is_over_tokens() -> None:
    """Ratios 1.25 and 1.3 (bound 1.28) with A = 1, .75 (bound .8) with A = -1: -(1.25 + 1.28 - .8) / 3."""
    ratios = torch.tensor([[1.25, 1.3], [0.75, 1.0]])
    batch = TrainBatch(
        inputs={},
        mask_BT=torch.tensor([[True, True], [True, False]]),
        advantages_BT=torch.tensor([[1.0, 1.0], [-1.0, 0.0]]),
        rollout_logprobs_BT=torch.zeros(2, 2),
        old_logprobs_BT=torch.zeros(2, 2),
    )
    algorithm = DAPO(DAPOConfig())
    new = ratios.log().requires_grad_()
    terms = algorithm.loss(PolicyOutputs(new), batch)
    loss = terms.total / algorithm.denominator(batch.mask_BT)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.25 + 1.28 - 0.8) / 3, abs=1e-6)
    torch.testing.assert_close(new.grad, torch.tensor([[-1.25 / 3, 0.0], [0.0, 0.0]]))


def test_rows_without_advantage_are_gradient_free_unless_another_term_moves_them() -> None:
    batch = scored([1, 0, 1, 0.5, 1, 1, 1, 1])
    for options, expected in (({}, [False] * 4 + [True] * 4), ({"kl_coef": 0.1}, [False] * 8)):
        algorithm = DAPO(DAPOConfig(**options))
        assert algorithm.gradient_free(batch, algorithm.advantages(batch)).tolist() == expected


def test_needs_follow_the_config() -> None:
    assert DAPO(DAPOConfig(group_size=5)).needs == needs(DAPOConfig(group_size=5))
    assert needs(DAPOConfig()).max_rounds == 32
    assert needs(DAPOConfig(dynamic_sampling=False)).max_rounds == 0
    assert needs(DAPOConfig(overlong_buffer=4)).length_limit
    assert not needs(DAPOConfig()).length_limit
    assert not needs(DAPOConfig()).reference


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, "algo.group_size .dapo.: 1: a group of one"),
        ({"max_rounds": 0}, "algo.max_rounds .dapo.: 0: must be 1 or more"),
        ({"filter_metric": "exact", "dynamic_sampling": False}, "only dynamic_sampling uses it"),
        ({"overlong_buffer": -1}, "algo.overlong_buffer"),
        ({"overlong_penalty": 0.0}, "algo.overlong_penalty"),
    ],
)
def test_unusable_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DAPOConfig(**options)


@pytest.mark.parametrize(
    ("longest", "message"), [(3, "is more than the longest response allowed, 3 tokens"), (0, "set it to 0")]
)
def test_a_buffer_that_does_not_fit_the_task_is_refused(longest: int, message: str) -> None:
    algorithm = DAPO(DAPOConfig(overlong_buffer=4))
    with pytest.raises(ConfigError, match=message):
        algorithm.advantages(scored([1.0] * 8, max_length=longest))
