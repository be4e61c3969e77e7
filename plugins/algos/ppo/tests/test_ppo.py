"""PPO against an independent numpy version and numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_algo_ppo.algorithm import PPO
from rlinf_algo_ppo.config import PPOConfig
from rlinf_algo_ppo.plugin import needs

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.errors import ConfigError

ROWS, STEPS = 6, 7
COLUMNS = ("logprobs_BT", "reference_logprobs_BT", "values_BT", "step_rewards_BT")


def scored(seed: int = 0, *, steps: bool = False) -> ScoredBatch:
    """Rows with gaps, one of them empty, one cut by a time limit; NaN off the mask."""
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.rand(ROWS, STEPS, generator=generator) < 0.7
    mask_BT[3] = False
    mask_BT[4] = True

    def draw(scale: float) -> torch.Tensor:
        drawn = scale * torch.randn(ROWS, STEPS, generator=generator)
        return drawn.masked_fill(~mask_BT, torch.nan)

    logprobs_BT = draw(1.0)
    return ScoredBatch(
        rewards_B=torch.randn(ROWS, generator=generator),
        groups_B=torch.arange(ROWS),
        mask_BT=mask_BT,
        logprobs_BT=logprobs_BT,
        truncated_B=torch.tensor([True, False, True, True, False, False]),
        step_rewards_BT=draw(1.0) if steps else None,
        reference_logprobs_BT=logprobs_BT + draw(0.3),
        values_BT=draw(1.0),
        final_values_B=torch.tensor([0.7, 0, 0, 0, 0, 0]),
    )


def numpy_advantages(batch: ScoredBatch, config: PPOConfig) -> tuple[list[list[float]], list[list[float]]]:
    """Whitened advantages and returns of each row's decisions, one decision after the other."""
    advantages, returns = [], []
    for b in range(len(batch.mask_BT)):
        chosen = batch.mask_BT[b].numpy()
        values = batch.values_BT[b].double().numpy()[chosen]  # type: ignore[index]
        if batch.step_rewards_BT is not None:
            rewards = batch.step_rewards_BT[b].double().numpy()[chosen]
        else:
            rewards = np.zeros(len(values))
            rewards[-1:] = float(batch.rewards_B[b])
        if config.kl_in_reward:
            gap = batch.logprobs_BT[b] - batch.reference_logprobs_BT[b]  # type: ignore[index]
            rewards = rewards - config.kl_coef * gap.double().numpy()[chosen]
        following = [*values[1:], 0.0 if batch.final_values_B is None else float(batch.final_values_B[b])]
        row = []
        for t in range(len(values)):
            total = 0.0
            for k in range(t, len(values)):
                delta = rewards[k] + config.gamma * following[k] - values[k]
                total += (config.gamma * config.gae_lambda) ** (k - t) * delta
            row.append(total)
        advantages.append(row)
        returns.append([a + v for a, v in zip(row, values, strict=True)])
    flat = np.array([a for row in advantages for a in row])
    if config.whiten:
        mean, variance = flat.mean(), flat.var(ddof=1)
        advantages = [[(a - mean) / math.sqrt(variance + 1e-8) for a in row] for row in advantages]
    return advantages, returns


CASES: list[dict[str, Any]] = [
    {},
    {"gamma": 0.99, "gae_lambda": 0.9},
    {"whiten": False, "gae_lambda": 1.0},
    {"kl_coef": 0.2},
    {"kl_coef": 0.2, "kl_in": "loss"},
    {"kl_coef": 0.2, "kl_in": "both", "gae_lambda": 0.0},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("steps", [False, True])
def test_advantages_and_returns_equal_an_independent_numpy_version(
    options: dict[str, Any], steps: bool
) -> None:
    config = PPOConfig(**options)
    for seed in range(10):
        batch = scored(seed, steps=steps)
        made = PPO(config).advantages(batch)
        expected_A, expected_R = numpy_advantages(batch, config)
        assert made.returns_BT is not None
        for b in range(ROWS):
            chosen = batch.mask_BT[b]
            assert made.advantages_BT[b, chosen].tolist() == pytest.approx(expected_A[b], abs=2e-5)
            assert made.returns_BT[b, chosen].tolist() == pytest.approx(expected_R[b], abs=1e-5)
            assert not made.advantages_BT[b, ~chosen].any()


def test_a_time_limit_goes_on_with_the_value_of_the_last_state_and_a_cut_text_ends() -> None:
    columns: dict[str, Any] = {
        "rewards_B": torch.tensor([1.0]),
        "groups_B": torch.zeros(1, dtype=torch.int64),
        "mask_BT": torch.tensor([[True, True]]),
        "logprobs_BT": torch.zeros(1, 2),
        "truncated_B": torch.tensor([True]),
        "values_BT": torch.tensor([[0.5, 0.25]]),
    }
    ppo = PPO(PPOConfig(gamma=0.5, gae_lambda=0.5, whiten=False))
    # text: delta = (.5 * .25 - .5, 1 - .25) = (-.375, .75); A = (-.375 + .25 * .75, .75)
    text = ppo.advantages(ScoredBatch(**columns))
    assert text.advantages_BT.tolist() == [[-0.1875, 0.75]]
    # simulator: the last delta is 1 + .5 * 2 - .25 = 1.75
    cut = ppo.advantages(ScoredBatch(**columns, final_values_B=torch.tensor([2.0])))
    assert cut.advantages_BT.tolist() == [[-0.375 + 0.25 * 1.75, 1.75]]
    assert cut.returns_BT is not None
    assert cut.returns_BT.tolist() == [[0.5625, 2.0]]


def test_time_passes_between_decisions_and_not_between_the_positions_of_one() -> None:
    batch = ScoredBatch(
        rewards_B=torch.tensor([7.0]),
        groups_B=torch.zeros(1, dtype=torch.int64),
        mask_BT=torch.tensor(
            [[True, True, True, False]]
        ),  # two decisions of two actions, the last not executed
        logprobs_BT=torch.zeros(1, 4),
        truncated_B=torch.tensor([False]),
        step_rewards_BT=torch.tensor([[1.0, 2.0, 4.0, 9.0]]),
        values_BT=torch.tensor([[0.5, 0.5, 0.25, 0.25]]),
        positions=2,
    )
    made = PPO(PPOConfig(gamma=0.5, gae_lambda=0.5, whiten=False)).advantages(batch)
    # delta = (1 + 2 + .5 * .25 - .5, 4 - .25) = (2.625, 3.75); A = (2.625 + .25 * 3.75, 3.75)
    assert made.advantages_BT.tolist() == [[3.5625, 3.5625, 3.75, 0.0]]
    assert made.returns_BT is not None
    assert made.returns_BT.tolist() == [[4.0625, 4.0625, 4.0, 0.0]]
    assert made.metrics["returns"] == (4.0625 + 4.0, 2.0)  # of decisions


@pytest.mark.parametrize("options", CASES)
def test_decisions_have_the_same_advantages_at_every_level(options: dict[str, Any]) -> None:
    config, chunks, each = PPOConfig(**options), scored(4, steps=True), 3
    shares = torch.tensor([0.5, 0.3, 0.2])  # of a decision's reward, and of its log-probabilities

    def parts(column_BT: torch.Tensor) -> torch.Tensor:
        return (column_BT[..., None] * shares).flatten(1)

    finer = replace(
        chunks,
        mask_BT=chunks.mask_BT.repeat_interleave(each, 1),
        logprobs_BT=parts(chunks.logprobs_BT),
        reference_logprobs_BT=parts(chunks.reference_logprobs_BT),  # type: ignore[arg-type]
        step_rewards_BT=parts(chunks.step_rewards_BT),  # type: ignore[arg-type]
        values_BT=chunks.values_BT.repeat_interleave(each, 1),  # type: ignore[union-attr]
        positions=each,
    )
    whole, found = PPO(config).advantages(chunks), PPO(config).advantages(finer)
    expected_BT = whole.advantages_BT.repeat_interleave(each, 1)
    torch.testing.assert_close(found.advantages_BT, expected_BT, atol=2e-5, rtol=0)
    assert whole.returns_BT is not None
    torch.testing.assert_close(found.returns_BT, whole.returns_BT.repeat_interleave(each, 1))


@pytest.mark.parametrize("options", CASES)
def test_amount_side_and_content_of_padding_change_nothing(options: dict[str, Any]) -> None:
    plain, moved = scored(steps=True), scored(steps=True)
    places = torch.tensor([2, 3, 4, 7, 8, 9, 10])  # of 12: on both sides, and two more gaps inside
    for name in ("mask_BT", *COLUMNS):
        narrow = getattr(plain, name)
        wide = narrow.new_full((ROWS, 12), 0 if narrow.dtype == torch.bool else 1e30)
        wide[:, places] = narrow
        setattr(moved, name, wide)
    config = PPOConfig(**options)
    here, there = PPO(config).advantages(plain), PPO(config).advantages(moved)
    torch.testing.assert_close(there.advantages_BT[:, places], here.advantages_BT)
    assert here.returns_BT is not None
    assert there.returns_BT is not None
    torch.testing.assert_close(there.returns_BT[:, places], here.returns_BT)
    assert here.metrics.keys() == there.metrics.keys()
    for name, value in here.metrics.items():
        assert there.metrics[name] == pytest.approx(value, rel=1e-5)


def train_batch(seed: int = 0) -> tuple[PolicyOutputs, TrainBatch]:
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.rand(ROWS, STEPS, generator=generator) < 0.7

    def draw(scale: float) -> torch.Tensor:
        return scale * torch.randn(ROWS, STEPS, generator=generator)

    old_BT, values_BT = draw(1.0), draw(1.0)
    batch = TrainBatch(
        inputs={},
        mask_BT=mask_BT,
        advantages_BT=draw(1.0) * mask_BT,
        rollout_logprobs_BT=old_BT,
        old_logprobs_BT=old_BT,
        reference_logprobs_BT=old_BT + draw(0.3),
        returns_BT=draw(1.0),
        values_BT=values_BT,
    )
    return PolicyOutputs(old_BT + draw(0.4), values_BT=values_BT + draw(0.5)), batch


def numpy_policy_and_value_loss(
    outputs: PolicyOutputs, batch: TrainBatch, value_clip: float, kl_coef: float
) -> tuple[float, float]:
    policy = value = 0.0
    assert outputs.values_BT is not None
    assert batch.old_logprobs_BT is not None
    assert batch.reference_logprobs_BT is not None
    assert batch.values_BT is not None
    assert batch.returns_BT is not None
    for b, t in batch.mask_BT.nonzero().tolist():
        new, advantage = float(outputs.logprobs_BT[b, t]), float(batch.advantages_BT[b, t])
        ratio = math.exp(new - float(batch.old_logprobs_BT[b, t]))
        policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        gap = float(batch.reference_logprobs_BT[b, t]) - new
        policy += kl_coef * (math.exp(gap) - gap - 1)
        v, old = float(outputs.values_BT[b, t]), float(batch.values_BT[b, t])
        held = min(max(v, old - value_clip), old + value_clip)
        target = float(batch.returns_BT[b, t])
        value += 0.5 * max((v - target) ** 2, (held - target) ** 2)
    return policy, value


def test_the_loss_of_a_policy_with_a_value_head_equals_an_independent_numpy_version() -> None:
    outputs, batch = train_batch()
    config = PPOConfig(value_coef=0.3, value_clip=0.2, kl_coef=0.1, kl_in="loss")
    policy, value = numpy_policy_and_value_loss(outputs, batch, value_clip=0.2, kl_coef=0.1)
    assert PPO(config).loss(outputs, batch).total.item() == pytest.approx(policy + 0.3 * value, rel=1e-5)
    assert PPO(config).critic_loss(outputs, batch).total.item() == pytest.approx(value, rel=1e-5)


def test_a_critic_of_its_own_leaves_its_loss_out_of_the_policys() -> None:
    outputs, batch = train_batch()
    ppo = PPO(PPOConfig(critic="own", value_clip=0.2))
    policy, value = numpy_policy_and_value_loss(outputs, batch, value_clip=0.2, kl_coef=0.0)
    terms = ppo.loss(PolicyOutputs(outputs.logprobs_BT), batch)
    assert terms.total.item() == pytest.approx(policy, rel=1e-5)
    assert not {"value_loss", "values"} & terms.metrics.keys()
    alone = ppo.critic_loss(PolicyOutputs(torch.zeros(ROWS, STEPS), values_BT=outputs.values_BT), batch)
    assert alone.total.item() == pytest.approx(value, rel=1e-5)
    assert set(alone.metrics) == {"value_loss", "value_clip_fraction", "values"}


def test_a_kl_in_the_reward_alone_is_no_part_of_the_loss() -> None:
    outputs, batch = train_batch()
    plain, penalised = PPO(PPOConfig()), PPO(PPOConfig(kl_coef=0.5))
    assert penalised.loss(outputs, batch).total.item() == plain.loss(outputs, batch).total.item()


def test_the_loss_takes_the_adapted_coefficient_of_the_step_and_goes_on_from_its_state() -> None:
    config = PPOConfig(kl_coef=0.1, kl_in="loss", kl_target=1e-6, kl_horizon=6)
    ppo, resumed = PPO(config), PPO(config)
    outputs, batch = train_batch()

    def kl_part(algorithm: PPO) -> float:
        return (algorithm.loss(outputs, batch).total - PPO(PPOConfig()).loss(outputs, batch).total).item()

    rows = scored()
    rows.reference_logprobs_BT = rows.logprobs_BT - 0.1
    assert ppo.advantages(rows).metrics["kl_coef"] == pytest.approx(0.1)
    first = kl_part(ppo)
    resumed.load_state_dict(ppo.state_dict())
    # far above its target: a fifth of 5 rows (one has no decision) in a horizon of 6
    assert ppo.advantages(rows).metrics["kl_coef"] == pytest.approx(0.1 * (1 + 0.2 * 5 / 6))
    assert kl_part(ppo) == pytest.approx(first * (1 + 0.2 * 5 / 6), rel=1e-4)
    resumed.advantages(rows)
    assert kl_part(resumed) == kl_part(ppo)


def test_metrics_are_those_of_the_trained_decisions() -> None:
    batch = scored()
    made = PPO(PPOConfig(kl_coef=0.1, mask_truncated=True)).advantages(batch)
    kept_BT = batch.mask_BT & ~batch.truncated_B[:, None]
    assert made.mask_BT is not None
    assert made.returns_BT is not None
    assert torch.equal(made.mask_BT, kept_BT)
    assert not made.advantages_BT[~kept_BT].any()
    assert float(made.advantages_BT[kept_BT].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(made.advantages_BT[kept_BT].std()) == pytest.approx(1.0, rel=1e-5)
    returns = made.returns_BT[kept_BT].double().numpy()
    values = batch.values_BT[kept_BT].double().numpy()  # type: ignore[index]
    assert made.metrics["returns"] == (pytest.approx(returns.sum()), len(returns))
    explained = 1 - np.var(returns - values) / np.var(returns)
    assert made.metrics["explained_variance"] == pytest.approx(explained, rel=1e-5)


def test_the_first_steps_train_the_critic_alone() -> None:
    ppo = PPO(PPOConfig(critic_warmup=2))
    assert [ppo.trains_policy(step) for step in range(4)] == [False, False, True, True]
    assert PPO(PPOConfig()).trains_policy(0)


def test_needs_follow_the_config() -> None:
    assert needs(PPOConfig()).critic == "head"
    assert needs(PPOConfig(critic="own")).critic == "own"
    assert needs(PPOConfig()).advantage_scope == "batch"
    assert needs(PPOConfig()).reference is False
    assert needs(PPOConfig(kl_coef=0.1)).reference is True
    assert needs(PPOConfig(group_size=3)).group_size == 3


def test_a_batch_without_values_is_an_error_that_names_the_option() -> None:
    batch = scored()
    batch.values_BT = None
    with pytest.raises(ConfigError, match=r"algo.critic=head, but the batch has no values"):
        PPO(PPOConfig()).advantages(batch)


def test_a_group_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo.group_size \(ppo\): 0: must be 1 or more"):
        PPOConfig(group_size=0)
