"""Advantages and returns against verl."""

from __future__ import annotations

import pytest
import torch
from crosscheck_batches import batches
from rlinf_algo_grpo.algorithm import GRPO
from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.presets import DrGRPOConfig, ReMaxConfig, RLOOConfig
from rlinf_algo_ppo.algorithm import PPO
from rlinf_algo_ppo.config import PPOConfig
from rlinf_algo_reinforce_pp.algorithm import ReinforcePP
from rlinf_algo_reinforce_pp.config import ReinforcePPConfig

from rlinf_core.rl.advantages import whiten
from rlinf_core.rl.gae import discounted_returns, gae

PEER = "verl"
COUNT = 200


@pytest.mark.parametrize(
    ("estimator", "config"),
    [
        ("grpo", GRPOConfig()),
        ("grpo_vectorized", GRPOConfig()),
        ("grpo", DrGRPOConfig()),
        ("rloo", RLOOConfig()),
        ("rloo_vectorized", RLOOConfig()),
    ],
    ids=lambda each: each if isinstance(each, str) else each.algorithm,
)
def test_group_advantages_are_those_of_verl(verl, near, estimator, config):
    asked = {} if config.scale_by_std or "grpo" not in estimator else {"norm_adv_by_std_in_grpo": False}
    for batch in batches(COUNT):
        ours = GRPO(config).advantages(batch.scored()).advantages_BT
        near(f"`{estimator}`", ours, verl.outcome_advantages(estimator, batch, **asked), config.algorithm)


def test_remax_advantages_are_those_of_verl(verl, near):
    for batch in batches(COUNT):
        scored = batch.scored()
        theirs = verl.outcome_advantages(
            "remax", batch, rewards_BT=batch.outcome_BT(), reward_baselines=scored.baselines_B
        )
        near("`remax`", GRPO(ReMaxConfig()).advantages(scored).advantages_BT, theirs)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_pp_advantages_are_those_of_verl(verl, near, gamma):
    algorithm = ReinforcePP(ReinforcePPConfig(gamma=gamma, kl_coef=0.0))
    for batch in batches(COUNT):
        scored = batch.scored()
        scored.step_rewards_BT = batch.rewards_BT
        ours = algorithm.advantages(scored).advantages_BT
        theirs = verl.outcome_advantages("reinforce_plus_plus", batch, gamma)
        near("`reinforce_plus_plus`", ours, theirs, "advantages")


def test_reinforce_pp_with_a_group_baseline_is_that_of_verl(verl, near):
    algorithm = ReinforcePP(ReinforcePPConfig(baseline="group", group_size=4))
    for batch in batches(COUNT):
        ours = algorithm.advantages(batch.scored()).advantages_BT
        if ours.any():  # else all advantages are equal: see the differences
            name = "reinforce_plus_plus_baseline"
            near(f"`{name}`", ours, verl.outcome_advantages(name, batch))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0)])
def test_gae_and_its_whitening_are_those_of_verl(verl, near, gamma, lam):
    for batch in batches(COUNT):
        advantages_BT, returns_BT = gae(
            batch.rewards_BT, batch.old_values_BT, batch.mask_BT, gamma=gamma, lam=lam
        )
        theirs = verl.gae(batch, batch.rewards_BT, gamma, lam)
        near("`gae`", returns_BT, theirs[1], "returns")
        near("`gae`", whiten(advantages_BT, batch.mask_BT), theirs[0], "advantages, whitened")


def test_discounted_returns_are_those_of_verl(verl, near):
    for batch in batches(COUNT):
        _, theirs = verl.core_algos.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards_BT, batch.weights_BT, verl.AlgoConfig(gamma=0.9)
        )
        ours = discounted_returns(batch.rewards_BT, batch.mask_BT, 0.9)
        near("`reinforce_plus_plus`", ours, theirs, "returns")


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_ppo_with_the_kl_in_the_reward_is_that_of_verl(verl, near, estimator):
    config = PPOConfig(gamma=0.97, gae_lambda=0.9, kl_coef=0.3, kl_reward_estimator=estimator)
    for batch in batches(COUNT):
        found = PPO(config).advantages(batch.scored())
        rewards_BT = verl.penalised_rewards(batch, verl.core_algos.FixedKLController(0.3), estimator)
        theirs = verl.gae(batch, rewards_BT, 0.97, 0.9)
        near("`apply_kl_penalty` and `gae`", found.advantages_BT, theirs[0], "advantages")
        near("`apply_kl_penalty` and `gae`", found.returns_BT, theirs[1], "returns")


def test_whitening_is_that_of_verl(verl, near):
    for batch in batches(COUNT):
        theirs = verl.functional.masked_whiten(batch.values_BT, batch.weights_BT) * batch.weights_BT
        near("`masked_whiten`", whiten(batch.values_BT, batch.mask_BT), theirs)


def test_what_stands_off_the_mask_changes_no_advantage():
    for batch in batches(20):
        scored = batch.scored()
        before = PPO(PPOConfig(kl_coef=0.1)).advantages(scored).advantages_BT
        for column in (scored.values_BT, scored.logprobs_BT, scored.reference_logprobs_BT):
            column[~batch.mask_BT] = torch.nan
        torch.testing.assert_close(PPO(PPOConfig(kl_coef=0.1)).advantages(scored).advantages_BT, before)
