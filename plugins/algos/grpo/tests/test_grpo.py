"""GRPO against an independent numpy version and hand-computed numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_algo_grpo.algorithm import GRPO
from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.plugin import needs

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.errors import ConfigError

LENGTHS = [5, 3, 4, 2, 5, 5, 1, 3]
REWARDS = [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
MASK = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]


def scored(**columns: Any) -> ScoredBatch:
    values: dict[str, Any] = {
        "rewards_B": torch.tensor(REWARDS),
        "groups_B": torch.tensor([0] * 4 + [1] * 4),
        "mask_BT": MASK,
        "logprobs_BT": torch.zeros(8, 5),
        "truncated_B": torch.zeros(8, dtype=torch.bool),
    }
    return ScoredBatch(**{**values, **columns})


def train_batch(seed: int = 0) -> tuple[torch.Tensor, TrainBatch]:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float) -> torch.Tensor:
        return torch.randn(8, 5, generator=generator) * scale

    old = -draw(1.0).abs() - 0.1
    batch = TrainBatch(
        inputs={},
        mask_BT=MASK,
        advantages_BT=draw(1.0) * MASK,
        rollout_logprobs_BT=old + draw(0.1),
        old_logprobs_BT=old,
        reference_logprobs_BT=old + draw(0.3),
    )
    return old + draw(0.4), batch


def numpy_loss(new: torch.Tensor, batch: TrainBatch, entropy: np.ndarray, options: dict[str, Any]) -> float:
    """The mean loss, written row by row and token by token."""
    config = {"low": 0.2, "high": 0.2, **options}
    assert batch.old_logprobs_BT is not None
    assert batch.reference_logprobs_BT is not None
    rows = []
    for b, length in enumerate(LENGTHS):
        logp, old = new[b, :length].double().numpy(), batch.old_logprobs_BT[b, :length].double().numpy()
        ref = batch.reference_logprobs_BT[b, :length].double().numpy()
        rollout = batch.rollout_logprobs_BT[b, :length].double().numpy()
        advantage = batch.advantages_BT[b, :length].double().numpy()
        ratio = np.exp(logp - old)
        if config.get("sequence"):
            ratio = np.full(length, math.exp(float(np.mean(logp - old))))
        losses = []
        for t in range(length):
            kept = min(max(ratio[t], 1 - config["low"]), 1 + config["high"])
            value = -min(ratio[t] * advantage[t], kept * advantage[t])
            if config.get("weighted"):
                value = -kept * advantage[t] * logp[t]
            if config.get("dual") and advantage[t] < 0:
                value = min(value, -config["dual"] * advantage[t])
            if config.get("cap"):
                gaps = old - rollout
                gap = {"token": gaps[t], "sequence": gaps.sum(), "geometric": gaps.mean()}[
                    config.get("cap_level", "token")
                ]
                weight = math.exp(gap)
                if config.get("masks"):
                    weight *= 1 / config["cap"] <= weight <= config["cap"]
                value *= min(weight, config["cap"])
            gap = ref[t] - logp[t]
            kl = {"k3": math.exp(gap) - gap - 1, "k2": gap**2 / 2}
            value += config.get("kl", 0.0) * kl[config.get("estimator", "k3")]
            losses.append(value - config.get("entropy", 0.0) * entropy[b, t])
        rows.append(losses)
    mode = config.get("mode", "token-mean")
    if mode == "token-mean":
        return sum(sum(row) for row in rows) / sum(LENGTHS)
    if mode == "seq-mean-token-mean":
        return float(np.mean([np.mean(row) for row in rows]))
    norm = config.get("norm", 1)
    return float(np.mean([sum(row) / norm for row in rows]))


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"clip_ratio_high": 0.28, "dual_clip": 1.3}, {"high": 0.28, "dual": 1.3}),
    ({"loss_aggregation": "seq-mean-token-mean"}, {"mode": "seq-mean-token-mean"}),
    ({"loss_aggregation": "seq-mean-token-sum"}, {"mode": "seq-mean-token-sum"}),
    (
        {"loss_aggregation": "seq-mean-token-sum-norm", "max_tokens_norm": 16},
        {"mode": "seq-mean-token-sum-norm", "norm": 16},
    ),
    ({"importance_level": "sequence"}, {"sequence": True}),
    ({"importance_level": "sequence", "importance_cap": 1.05}, {"sequence": True, "cap": 1.05}),
    (
        {"importance_cap": 1.05, "importance_cap_level": "sequence"},
        {"cap": 1.05, "cap_level": "sequence"},
    ),
    (
        {"importance_cap": 1.03, "importance_cap_level": "geometric", "importance_cap_mode": "mask"},
        {"cap": 1.03, "cap_level": "geometric", "masks": True},
    ),
    ({"importance_cap": 1.05}, {"cap": 1.05}),
    ({"decoupled": True}, {"cap": math.inf}),
    (
        {"policy_loss": "weighted", "clip_ratio": 1.0, "clip_ratio_high": 0.05},
        {"weighted": True, "low": 1.0, "high": 0.05},
    ),
    ({"kl_coef": 0.3}, {"kl": 0.3}),
    ({"kl_coef": 0.3, "kl_estimator": "k2"}, {"kl": 0.3, "estimator": "k2"}),
    ({"entropy_coef": 0.2, "clip_ratio": 0.1}, {"entropy": 0.2, "low": 0.1, "high": 0.1}),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_loss_equals_an_independent_numpy_version(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    algorithm = GRPO(GRPOConfig(**ours))
    new, batch = train_batch()
    entropy = torch.rand(8, 5, generator=torch.Generator().manual_seed(1))
    total = algorithm.loss(PolicyOutputs(new, entropy), batch).total / algorithm.denominator(MASK)
    assert total.item() == pytest.approx(numpy_loss(new, batch, entropy.numpy(), theirs), rel=1e-5)


@pytest.mark.parametrize("options", [ours for ours, _ in CASES])
@pytest.mark.parametrize("parts", [[1, 2, 5], [8, 0], [4, 4]])
def test_any_split_gives_the_same_loss_gradient_and_metrics(
    options: dict[str, Any], parts: list[int]
) -> None:
    algorithm = GRPO(GRPOConfig(**options))
    new, batch = train_batch()
    entropy = torch.rand(8, 5)
    whole, pieces = new.clone().requires_grad_(), new.clone().requires_grad_()
    terms = algorithm.loss(PolicyOutputs(whole, entropy), batch)
    terms.total.backward()
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in terms.metrics}
    start = 0
    for size in parts:
        rows = slice(start, start + size)
        cut = {name: value[rows] for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
        part = algorithm.loss(PolicyOutputs(pieces[rows], entropy[rows]), TrainBatch(inputs={}, **cut))
        part.total.backward()
        for name, (total, count) in part.metrics.items():
            sums[name][0] += float(total)
            sums[name][1] += float(count)
        start += size
    torch.testing.assert_close(pieces.grad, whole.grad, rtol=1e-6, atol=1e-9)
    for name, (total, count) in terms.metrics.items():
        assert sums[name] == pytest.approx([float(total), float(count)], rel=1e-5)


def test_advantages_are_the_reference_numbers_at_every_trained_token() -> None:
    result = GRPO(GRPOConfig(group_size=4)).advantages(scored())
    expected = torch.tensor([0.783348, -1.305580, 0.783348, -0.261116, 0, 0, 0, 0])
    torch.testing.assert_close(result.advantages_BT, expected[:, None] * MASK, atol=1e-6, rtol=0)
    assert result.metrics["zero_variance_groups"] == (1.0, 2.0)


def test_a_group_of_one_gets_no_advantage_and_a_warning() -> None:
    batch = scored(groups_B=torch.tensor([0, 0, 0, 0, 1, 1, 1, 7]), rewards_B=torch.rand(8))
    with pytest.warns(RuntimeWarning, match="1 groups have one row only"):
        result = GRPO(GRPOConfig()).advantages(batch)
    assert not result.advantages_BT[7].any()
    assert result.metrics["groups_of_one"] == (1.0, 1.0)


def test_groups_with_a_mean_reward_outside_the_bounds_are_not_trained() -> None:
    rewards_B = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])  # means .25 and .75
    for bounds, kept in (((0.25, None), [1, 1]), ((0.3, 0.75), [0, 1]), ((None, 0.7), [1, 0])):
        algorithm = GRPO(GRPOConfig(filter_low=bounds[0], filter_high=bounds[1]))
        result = algorithm.advantages(scored(rewards_B=rewards_B))
        expected = MASK & torch.tensor(kept, dtype=torch.bool).repeat_interleave(4)[:, None]
        assert result.mask_BT is not None
        assert torch.equal(result.mask_BT, expected)
        assert torch.equal(result.advantages_BT != 0, expected)
        assert result.metrics["filtered_groups"] == (2.0 - sum(kept), 2.0)


def test_cut_rows_are_not_trained_but_count_in_their_group() -> None:
    batch = scored(truncated_B=torch.tensor([True, False, True, False, False, False, True, False]))
    result = GRPO(GRPOConfig(mask_truncated=True)).advantages(batch)
    assert result.mask_BT is not None
    assert result.mask_BT.any(-1).tolist() == [False, True, False, True, True, True, False, True]
    assert result.advantages_BT[1, 0].item() == pytest.approx(-1.305580, abs=1e-6)
    assert not result.advantages_BT[[0, 2]].any()
    assert result.mask_BT[1].tolist() == MASK[1].tolist()


def test_the_greedy_baseline_is_the_reward_of_the_greedy_response() -> None:
    baselines_B = torch.tensor([1.0, 0.25, 0.0, 0.5, 1.0, 0.0, 1.0, 1.0])
    algorithm = GRPO(GRPOConfig(baseline="greedy", scale_by_std=False, group_size=1))
    result = algorithm.advantages(scored(baselines_B=baselines_B))
    expected = torch.tensor([0.0, -0.25, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    assert torch.equal(result.advantages_BT, expected[:, None] * MASK)
    assert result.metrics == {"greedy_reward": (4.75, 8.0)}
    with pytest.raises(ConfigError, match="the batch has no rewards of greedy responses"):
        algorithm.advantages(scored())


def test_rows_without_advantage_are_gradient_free_unless_another_term_moves_them() -> None:
    for options, expected in (({}, [False] * 4 + [True] * 4), ({"kl_coef": 0.1}, [False] * 8)):
        algorithm = GRPO(GRPOConfig(**options))
        batch = scored()
        assert algorithm.gradient_free(batch, algorithm.advantages(batch)).tolist() == expected
    entropic = GRPO(GRPOConfig(entropy_coef=0.1))
    assert not entropic.gradient_free(scored(), entropic.advantages(scored())).any()


def test_off_mask_values_and_their_gradients_have_no_effect() -> None:
    algorithm = GRPO(
        GRPOConfig(kl_coef=0.1, entropy_coef=0.1, importance_cap=2.0, importance_level="sequence")
    )
    new, batch = train_batch()
    littered = new.masked_fill(~MASK, torch.nan).requires_grad_()
    clean = algorithm.loss(PolicyOutputs(new, torch.ones(8, 5)), batch)
    terms = algorithm.loss(PolicyOutputs(littered, torch.ones(8, 5)), batch)
    terms.total.backward()
    assert terms.total.item() == clean.total.item()
    assert littered.grad is not None
    assert torch.isfinite(littered.grad).all()
    assert not littered.grad[~MASK].any()


def test_on_policy_the_gradient_is_advantage_times_score() -> None:
    new, batch = train_batch()
    batch.old_logprobs_BT = None
    logprobs = new.requires_grad_()
    terms = GRPO(GRPOConfig()).loss(PolicyOutputs(logprobs), batch)
    terms.total.backward()
    torch.testing.assert_close(logprobs.grad, -batch.advantages_BT * MASK)
    assert terms.metrics["clip_fraction"][0] == 0
    assert terms.metrics["approx_kl"][0] == 0


def test_the_clip_fraction_and_dual_clip_fraction_are_those_of_the_reference() -> None:
    batch = TrainBatch(
        inputs={},
        mask_BT=torch.ones(1, 4, dtype=torch.bool),
        advantages_BT=torch.tensor([[-1.0, -1.0, -1.0, 1.0]]),
        rollout_logprobs_BT=torch.zeros(1, 4),
        old_logprobs_BT=torch.zeros(1, 4),
    )
    new = torch.tensor([[1.6, 0.1, -0.5, 0.5]])
    terms = GRPO(GRPOConfig(clip_ratio_high=0.28, dual_clip=3.0)).loss(PolicyOutputs(new), batch)
    means = {name: float(total) / float(count) for name, (total, count) in terms.metrics.items()}
    assert means["policy_loss"] == pytest.approx(0.9062929, abs=1e-6)
    assert means["clip_fraction"] == 0.5
    assert means["dual_clip_fraction"] == 0.25
    assert means["approx_kl"] == pytest.approx(float((new.exp() - 1 - new).mean()), rel=1e-5)


def test_needs_follow_the_config() -> None:
    assert GRPO(GRPOConfig(group_size=5)).needs == needs(GRPOConfig(group_size=5))
    assert needs(GRPOConfig()).reference is False
    assert needs(GRPOConfig(kl_coef=0.01)).reference is True
    assert needs(GRPOConfig(entropy_coef=0.01)).entropy is True
    assert needs(GRPOConfig()).advantage_scope == "group"
    assert needs(GRPOConfig(decoupled=True)).recompute_old is True
    assert needs(GRPOConfig()).off_policy
    assert needs(GRPOConfig(logprob_level="token")).logprob_level == "token"
    greedy = needs(GRPOConfig(baseline="greedy", scale_by_std=False, group_size=1))
    assert (greedy.greedy_baseline, greedy.group_size, greedy.advantage_scope) == (True, 1, "sample")


def test_the_constant_norm_is_the_longest_response_allowed_unless_it_is_given() -> None:
    algorithm = GRPO(GRPOConfig(loss_aggregation="seq-mean-token-sum-norm"))
    assert algorithm.needs.length_limit
    new, batch = train_batch()
    with pytest.raises(ConfigError, match="the task has no longest response; give a number"):
        algorithm.loss(PolicyOutputs(new), batch)
    batch.max_length = 16
    given = GRPO(GRPOConfig(loss_aggregation="seq-mean-token-sum-norm", max_tokens_norm=16))
    assert not given.needs.length_limit
    total = algorithm.loss(PolicyOutputs(new), batch).total
    assert total.item() == given.loss(PolicyOutputs(new), batch).total.item()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_estimator": "k1", "kl_coef": 0.1}, "algo.kl_estimator .grpo.: 'k1': cannot be used in a loss"),
        ({"group_size": 1}, "algo.group_size .grpo.: 1: a group of one has no baseline"),
        ({"baseline": "greedy"}, "algo.scale_by_std .grpo.: True: the greedy baseline has no group"),
        ({"baseline": "greedy", "scale_by_std": False, "group_size": 0}, "0: must be 1 or more"),
        (
            {"filter_low": 0.5, "filter_high": 0.5},
            "algo.filter_low .grpo.: 0.5: must be below filter_high=0.5",
        ),
        ({"policy_loss": "weighted", "dual_clip": 3.0}, "algo.dual_clip"),
        ({"clip_ratio": 1.2}, "algo.clip_ratio"),
        ({"clip_ratio_high": 0.0}, "algo.clip_ratio_high"),
        ({"dual_clip": 1.0}, "algo.dual_clip"),
        ({"kl_coef": -0.1}, "algo.kl_coef"),
        ({"importance_cap": 0.0}, "algo.importance_cap"),
        ({"kl_estimator": "k2"}, "algo.kl_estimator .grpo.: .k2.: has no effect while kl_coef is 0"),
        ({"max_tokens_norm": 64}, "only loss_aggregation=seq-mean-token-sum-norm uses it"),
    ],
)
def test_unusable_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GRPOConfig(**options)
