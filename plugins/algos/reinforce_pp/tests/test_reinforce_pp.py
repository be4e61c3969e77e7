"""REINFORCE++ against the reference numbers and an independent numpy version."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_algo_reinforce_pp.algorithm import ReinforcePP
from rlinf_algo_reinforce_pp.config import ReinforcePPConfig
from rlinf_algo_reinforce_pp.plugin import needs

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.errors import ConfigError

LENGTHS = [5, 3, 4, 2, 5, 5, 1, 3]
REWARDS = [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
RIGHT = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
GROUP: dict[str, Any] = {"baseline": "group", "group_size": 4}


def scored(mask_BT: torch.Tensor = RIGHT, **columns: Any) -> ScoredBatch:
    values: dict[str, Any] = {
        "rewards_B": torch.tensor(REWARDS),
        "groups_B": torch.tensor([0] * 4 + [1] * 4),
        "mask_BT": mask_BT,
        "logprobs_BT": torch.zeros(8, 5),
        "truncated_B": torch.zeros(8, dtype=torch.bool),
        "reference_logprobs_BT": torch.zeros(8, 5),
    }
    return ScoredBatch(**{**values, **columns})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 28 tokens: mean 24 / 28; sum of squares 23 (1 / 7)^2 + 3 (6 / 7)^2 + 2 (5 / 14)^2, over 27
        ({}, [0.433766, -2.602599, 0.433766, -1.084416, *[0.433766] * 4]),
        # less the means .625 and 1: tokens of .375, -.625, .375, -.125 and 14 zeros; mean 1.25 / 28
        (GROUP, [1.105075, -2.240017, 1.105075, -0.567471, *[-0.149334] * 4]),
    ],
)
@pytest.mark.parametrize("mask_BT", [RIGHT, RIGHT.flip(-1)])
def test_advantages_are_the_reference_numbers_at_every_token_on_either_side(
    mask_BT: torch.Tensor, options: dict[str, Any], expected: list[float]
) -> None:
    made = ReinforcePP(ReinforcePPConfig(**options)).advantages(scored(mask_BT))
    expected_BT = torch.tensor(expected)[:, None] * mask_BT
    torch.testing.assert_close(made.advantages_BT, expected_BT, atol=1e-6, rtol=0)


def numpy_advantages(batch: ScoredBatch, options: dict[str, Any]) -> list[list[float]]:
    """Token by token: what is still to come, then whitened over the tokens of all rows."""
    rows = []
    for b in range(8):
        chosen = batch.mask_BT[b].numpy()
        outcome = float(batch.rewards_B[b])
        kl = (batch.logprobs_BT[b] - batch.reference_logprobs_BT[b]).double().numpy()[chosen]  # type: ignore[index]
        rewards = np.zeros(chosen.sum())
        if options.get("baseline") == "group":
            rewards[-1] = outcome - np.mean(REWARDS[:4] if b < 4 else REWARDS[4:])
        elif batch.step_rewards_BT is not None:
            rewards = batch.step_rewards_BT[b].double().numpy()[chosen]
        else:
            rewards[-1] = outcome
        default = "loss" if options.get("baseline") == "group" else "reward"
        if options.get("kl_in", default) != "loss":
            rewards = rewards - options["kl_coef"] * kl
        gamma = options.get("gamma", 1.0)
        rows.append(
            [sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
        )
    flat = np.array([value for row in rows for value in row])
    scale = math.sqrt(flat.var(ddof=1) + 1e-8)
    return [[(value - flat.mean()) / scale for value in row] for row in rows]


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"kl_coef": 0.3},
        {"kl_coef": 0.3, "gamma": 0.9},
        {"kl_coef": 0.3, "kl_in": "loss"},
        {"kl_coef": 0.3, **GROUP},
        {"kl_coef": 0.3, **GROUP, "kl_in": "both"},
    ],
)
def test_advantages_equal_an_independent_numpy_version(options: dict[str, Any], steps: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(10):
        mask_BT = torch.rand(8, 5, generator=generator) < 0.6
        mask_BT[:, 2] = True
        columns = torch.randn(3, 8, 5, generator=generator).masked_fill(~mask_BT, torch.nan)
        batch = scored(
            mask_BT,
            logprobs_BT=columns[0],
            reference_logprobs_BT=columns[1],
            step_rewards_BT=columns[2] if steps else None,
        )
        made = ReinforcePP(ReinforcePPConfig(**options)).advantages(batch)
        for b, expected in enumerate(numpy_advantages(batch, options)):
            assert made.advantages_BT[b, mask_BT[b]].tolist() == pytest.approx(expected, abs=1e-5)
            assert not made.advantages_BT[b, ~mask_BT[b]].any()


def train_batch() -> tuple[torch.Tensor, TrainBatch]:
    generator = torch.Generator().manual_seed(0)
    old_BT, moved_BT, gap_BT, advantages_BT = torch.randn(4, 8, 5, generator=generator)
    batch = TrainBatch(
        inputs={},
        mask_BT=RIGHT,
        advantages_BT=advantages_BT * RIGHT,
        rollout_logprobs_BT=old_BT,
        old_logprobs_BT=old_BT,
        reference_logprobs_BT=old_BT + 0.3 * gap_BT,
    )
    return old_BT + 0.4 * moved_BT, batch


@pytest.mark.parametrize(
    ("options", "kl_coef"),
    [({}, 0.0), ({**GROUP, "kl_coef": 0.5}, 0.5), ({"kl_in": "both", "kl_coef": 0.5}, 0.5)],
)
def test_the_kl_is_in_the_loss_as_k2_with_a_group_baseline_or_when_asked(
    options: dict[str, Any], kl_coef: float
) -> None:
    new_BT, batch = train_batch()
    assert batch.old_logprobs_BT is not None
    assert batch.reference_logprobs_BT is not None
    expected = 0.0
    for b, t in RIGHT.nonzero().tolist():
        new, advantage = float(new_BT[b, t]), float(batch.advantages_BT[b, t])
        ratio = math.exp(new - float(batch.old_logprobs_BT[b, t]))
        expected -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        expected += kl_coef * (new - float(batch.reference_logprobs_BT[b, t])) ** 2 / 2
    terms = ReinforcePP(ReinforcePPConfig(**options)).loss(PolicyOutputs(new_BT), batch)
    assert terms.total.item() == pytest.approx(expected, rel=1e-5)
    assert ("kl" in terms.metrics) is (kl_coef > 0)


def test_an_adaptive_coefficient_is_used_and_saved() -> None:
    config = ReinforcePPConfig(kl_coef=0.1, kl_target=0.25, kl_horizon=80)
    algorithm, resumed = ReinforcePP(config), ReinforcePP(config)
    batch = scored(reference_logprobs_BT=torch.full((8, 5), -0.5))  # a KL of .5: twice the target
    assert algorithm.advantages(batch).metrics["kl"] == (pytest.approx(14.0), 28.0)
    resumed.load_state_dict(algorithm.state_dict())
    second, again = algorithm.advantages(batch), resumed.advantages(batch)
    assert second.metrics["kl_coef"] == pytest.approx(0.1 * (1 + 0.2 * 8 / 80))
    assert torch.equal(second.advantages_BT, again.advantages_BT)


def test_metrics_tell_of_groups_and_returns() -> None:
    made = ReinforcePP(ReinforcePPConfig(**GROUP)).advantages(scored())
    assert made.metrics["zero_variance_groups"] == (1.0, 2.0)
    assert made.metrics["returns"] == (pytest.approx(1.25), 28.0)
    plain = ReinforcePP(ReinforcePPConfig(kl_coef=0.0)).advantages(scored(reference_logprobs_BT=None))
    assert plain.metrics == {"returns": (24.0, 28.0)}


def test_rows_that_are_not_trained_take_no_part_in_whitening() -> None:
    cut_B = torch.tensor([False, True, *[False] * 6])
    made = ReinforcePP(ReinforcePPConfig(mask_truncated=True)).advantages(scored(truncated_B=cut_B))
    kept_BT = RIGHT & ~cut_B[:, None]
    assert made.mask_BT is not None
    assert torch.equal(made.mask_BT, kept_BT)
    # 25 tokens, 23 of reward 1 and 2 of .5: mean .96
    deviation = math.sqrt((23 * 0.04**2 + 2 * 0.46**2) / 24)
    assert made.advantages_BT[0, 0].item() == pytest.approx(0.04 / deviation, rel=1e-5)
    assert made.advantages_BT[3, 0].item() == pytest.approx(-0.46 / deviation, rel=1e-5)


def test_needs_follow_the_config() -> None:
    assert needs(ReinforcePPConfig()).advantage_scope == "batch"
    assert needs(ReinforcePPConfig()).critic == "none"
    assert needs(ReinforcePPConfig()).reference is True
    assert needs(ReinforcePPConfig(kl_coef=0.0)).reference is False
    assert needs(ReinforcePPConfig(**GROUP)).group_size == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "group"}, r"algo.group_size \(reinforce_pp\): 1: with baseline=group, use 2 or more"),
        ({"group_size": 0}, "algo.group_size"),
        ({"gamma": 1.5}, "algo.gamma"),
        ({**GROUP, "gamma": 0.9}, "algo.gamma .*gets the whole outcome"),
        ({**GROUP, "kl_estimator": "k1"}, "algo.kl_estimator .*gradient is zero"),
        ({**GROUP, "kl_reward_estimator": "k3"}, "algo.kl_reward_estimator .*kl_estimator"),
        ({"kl_estimator": "k3"}, "algo.kl_estimator .*kl_reward_estimator"),
    ],
)
def test_unusable_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReinforcePPConfig(**options)
