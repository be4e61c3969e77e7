"""Rewards of decisions and the KL in them, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from rlinf_core.api import ScoredBatch
from rlinf_core.errors import ConfigError
from rlinf_core.objective import RewardKLOptions
from rlinf_core.objective.kl_reward import KLCoefficient, penalised_rewards, token_rewards

MASK = torch.tensor(
    [
        [1, 1, 1, 0, 0],  # padded on the right
        [0, 0, 1, 1, 1],  # on the left
        [1, 0, 1, 1, 0],  # a gap that a tool wrote
        [0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def batch(**columns: Any) -> ScoredBatch:
    values: dict[str, Any] = {
        "rewards_B": torch.tensor([1.0, 2.0, 3.0, 4.0]),
        "groups_B": torch.arange(4),
        "mask_BT": MASK,
        "logprobs_BT": torch.full((4, 5), -1.0).masked_fill(~MASK, torch.nan),
        "truncated_B": torch.zeros(4, dtype=torch.bool),
    }
    return ScoredBatch(**{**values, **columns})


def with_reference(gap: float) -> ScoredBatch:
    """Rows whose policy is `gap` nats above the reference at each decision."""
    return batch(reference_logprobs_BT=torch.full((4, 5), -1.0 - gap).masked_fill(~MASK, torch.inf))


def test_the_outcome_is_paid_at_the_last_decision_of_each_row_whatever_the_side_of_padding() -> None:
    assert token_rewards(batch()).tolist() == [
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 2],
        [0, 0, 0, 3, 0],
        [0, 0, 0, 0, 0],
    ]


def test_rewards_of_steps_are_taken_as_they_are_and_off_the_mask_not_read() -> None:
    steps_BT = torch.arange(20.0).view(4, 5).masked_fill(~MASK, torch.nan)
    rewards_BT = token_rewards(batch(step_rewards_BT=steps_BT))
    assert rewards_BT.tolist() == [[0, 1, 2, 0, 0], [0, 0, 7, 8, 9], [10, 0, 12, 13, 0], [0] * 5]


@pytest.mark.parametrize(
    ("estimator", "value"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 1 + 0.5)],
)
def test_each_decision_pays_for_its_kl_and_the_last_one_is_paid_the_outcome(
    estimator: Any, value: float
) -> None:
    rewards_BT = token_rewards(with_reference(0.5), 0.1, estimator)
    expected = token_rewards(batch()) - 0.1 * value * MASK
    torch.testing.assert_close(rewards_BT, expected)


def test_a_policy_below_the_reference_is_paid_by_k1_and_charged_by_k3() -> None:
    assert token_rewards(with_reference(-0.5), 0.1, "k1")[0, 0] == pytest.approx(0.05)
    assert token_rewards(with_reference(-0.5), 0.1, "k3")[0, 0] == pytest.approx(-0.1 * (math.exp(0.5) - 1.5))


def test_a_kl_without_a_reference_is_an_error() -> None:
    with pytest.raises(ConfigError, match="kl_coef is set, but the batch has no reference log-prob"):
        token_rewards(batch(), 0.1)


def test_an_adaptive_coefficient_follows_its_target_a_fifth_of_the_horizon_at_most() -> None:
    kl = KLCoefficient(0.2, target=0.1, horizon=1000)
    assert kl.begin_step(0.3, rows=100) == 0.2  # twice above: an error of 2, clipped to 0.2
    assert kl.begin_step(0.09, rows=100) == pytest.approx(0.2 * 1.02)  # a tenth below
    assert kl.begin_step(-1.0, rows=500) == pytest.approx(0.2 * 1.02 * 0.99)  # clipped to -0.2
    assert kl.begin_step(0.1, rows=500) == pytest.approx(0.2 * 1.02 * 0.99 * 0.9)
    assert kl.value == pytest.approx(0.2 * 1.02 * 0.99 * 0.9)


def test_an_adaptive_coefficient_goes_on_from_its_state() -> None:
    kl, resumed = (KLCoefficient(0.2, target=0.1, horizon=1000) for _ in range(2))
    kl.begin_step(0.3, rows=100)
    resumed.load_state_dict(json.loads(json.dumps(kl.state_dict())))
    assert resumed.begin_step(0.1, rows=1) == kl.begin_step(0.1, rows=1) == pytest.approx(0.204)


def test_a_fixed_coefficient_stays_and_has_no_state() -> None:
    kl = KLCoefficient(0.2)
    assert [kl.begin_step(5.0, rows=9) for _ in range(3)] == [0.2] * 3
    assert kl.state_dict() == {}


@pytest.mark.parametrize(
    ("kl_in", "in_reward", "in_loss"),
    [(None, True, False), ("reward", True, False), ("loss", False, True), ("both", True, True)],
)
def test_the_kl_goes_into_the_reward_or_the_loss_and_into_both_only_when_asked(
    kl_in: Any, in_reward: bool, in_loss: bool
) -> None:
    options = RewardKLOptions(kl_coef=0.1, kl_in=kl_in)
    assert (options.kl_in_reward, options.kl_in_loss) == (in_reward, in_loss)
    rewards_BT, metrics = penalised_rewards(with_reference(0.5), KLCoefficient(0.1), options)
    assert rewards_BT[0, 0] == pytest.approx(-0.05 if in_reward else 0.0)
    assert metrics["kl_coef"] == 0.1
    assert ("kl" in metrics) is not in_loss  # the loss reports its own


def test_the_kl_of_a_step_is_a_mean_over_its_decisions_and_moves_the_next_coefficient() -> None:
    options = RewardKLOptions(kl_coef=0.1, kl_target=0.4, kl_horizon=30)
    kl = KLCoefficient(options.kl_coef, options.kl_target, options.kl_horizon)
    _, metrics = penalised_rewards(with_reference(0.44), kl, options)
    assert metrics["kl"] == (pytest.approx(9 * 0.44), 9.0)
    # 10 % above the target; 3 of 30 rows, as the fourth has no decision
    assert kl.state_dict() == {"kl_coef": pytest.approx(0.1 * (1 + 0.1 * 3 / 30))}


def test_without_a_coefficient_no_reference_is_read() -> None:
    rewards_BT, metrics = penalised_rewards(batch(), KLCoefficient(0.0), RewardKLOptions())
    assert metrics == {}
    assert torch.equal(rewards_BT, token_rewards(batch()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_target": 0.1}, "algo.kl_target .*kl_coef starts at 0"),
        ({"kl_coef": 0.1, "kl_target": 0.0}, "algo.kl_target .*must be above 0"),
        ({"kl_coef": 0.1, "kl_target": 0.1, "kl_horizon": 0}, "algo.kl_horizon .*1 or more"),
        ({"kl_coef": 0.1, "kl_horizon": 100}, "algo.kl_horizon .*set kl_target too"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "algo.kl_estimator .*of one in the reward: kl_reward_est"),
        ({"kl_coef": 0.1, "kl_in": "loss", "kl_estimator": "k1"}, "algo.kl_estimator .*gradient is zero"),
        ({"kl_coef": 0.1, "kl_in": "both", "kl_estimator": "k1"}, "algo.kl_estimator .*gradient is zero"),
        (
            {"kl_coef": 0.1, "kl_in": "loss", "kl_reward_estimator": "k2"},
            "algo.kl_reward_estimator .*of one in the loss: kl_estimator",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RewardKLOptions(**options)
