"""Losses, advantages and weights against TRL's trainers."""

from __future__ import annotations

import pytest
import torch
from crosscheck_batches import batches
from crosscheck_losses import compare, our_loss, with_gradient
from rlinf_algo_dapo.algorithm import overlong
from rlinf_algo_grpo.algorithm import GRPO
from rlinf_algo_grpo.presets import CISPOConfig, DrGRPOConfig, RLOOConfig

from rlinf_core.objective import PolicyOptions
from rlinf_core.rl.advantages import group_advantages, group_statistics
from rlinf_core.rl.importance import truncated_importance

PEER = "TRL"
COUNT = 200
NORM = 7
MODES = {
    "grpo": {"loss_aggregation": "seq-mean-token-mean"},
    "bnpo": {"loss_aggregation": "token-mean"},
    "dapo": {"loss_aggregation": "token-mean"},
    "dr_grpo": {"loss_aggregation": "seq-mean-token-sum-norm", "max_tokens_norm": NORM},
}


@pytest.mark.parametrize("loss_type", MODES)
@pytest.mark.parametrize("on_policy", [False, True], ids=["off-policy", "on-policy"])
def test_a_loss_is_that_of_trl(trl, near, loss_type, on_policy):
    config = PolicyOptions(clip_ratio_high=0.28, **MODES[loss_type])
    chosen = {"loss_type": loss_type, "epsilon_high": 0.28, "max_completion_length": NORM}
    for batch in batches(COUNT, empty=False):
        ours = our_loss(batch, config, batch.advantages_BT, on_policy)
        theirs = trl.grpo_loss(batch, batch.advantages_BT, on_policy, **chosen)
        mine, other = compare(near, f"`loss_type={loss_type}`", batch, ours, theirs)
        near("metrics", mine["entropy"], other["entropy"], "entropy")
        near("metrics", mine["clip_fraction"], other["clip_ratio/region_mean"], "clip fraction")
        near("metrics", mine["clip_fraction_low"], other["clip_ratio/low_mean"], "clip fraction, low")
        near("metrics", mine["clip_fraction_high"], other["clip_ratio/high_mean"], "clip fraction, high")


@pytest.mark.parametrize("cap", [1.3, 5.0])
def test_clipped_weights_are_those_of_trl(trl, near, cap):
    config = CISPOConfig(clip_ratio_high=cap - 1.0)
    for batch in batches(COUNT):
        ours = our_loss(batch, config, batch.advantages_BT)
        theirs = trl.grpo_loss(batch, batch.advantages_BT, loss_type="cispo", epsilon_high=cap)
        compare(near, "`loss_type=cispo`", batch, ours, theirs)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_sequence_ratios_are_those_of_trl(trl, near, loss_type):
    clips = {"clip_ratio": 0.03, "clip_ratio_high": 0.04}
    config = PolicyOptions(importance_level="sequence", **clips, **MODES[loss_type])
    chosen = {"loss_type": loss_type, "epsilon_low": 0.03, "epsilon_high": 0.04}
    for batch in batches(COUNT, empty=False):
        ours = our_loss(batch, config, batch.advantages_BT)
        theirs = trl.grpo_loss(
            batch,
            batch.advantages_BT,
            importance_sampling_level="sequence",
            max_completion_length=NORM,
            **chosen,
        )
        compare(near, "`importance_sampling_level=sequence`", batch, ours, theirs)


def test_two_sided_clipping_is_the_dual_clip(trl, near):
    config = PolicyOptions(dual_clip=1.5)
    for batch in batches(COUNT):
        theirs = trl.grpo_loss(batch, batch.advantages_BT, delta=1.5)
        compare(near, "`delta`", batch, our_loss(batch, config, batch.advantages_BT), theirs)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("corrected", [False, True], ids=["k3", "k3-ratio"])
def test_the_kl_term_is_that_of_trl(trl, near, loss_type, corrected):
    estimator = "k3-ratio" if corrected else "k3"
    name = "`beta`, `use_bias_correction_kl`" if corrected else "`beta`"
    config = PolicyOptions(kl_coef=0.1, kl_estimator=estimator, **MODES[loss_type])
    for batch in batches(COUNT, empty=False):
        theirs = trl.grpo_loss(
            batch,
            batch.advantages_BT,
            loss_type=loss_type,
            beta=0.1,
            use_bias_correction_kl=corrected,
            max_completion_length=NORM,
        )
        ours = our_loss(batch, config, batch.advantages_BT)
        mine, other = compare(near, name, batch, ours, theirs)
        near(name, mine["kl"], other["kl"], "metric")


def test_the_entropy_bonus_is_that_of_trl_in_a_token_mean(trl, near):
    config = PolicyOptions(entropy_coef=0.05)
    for batch in batches(COUNT):
        theirs = trl.grpo_loss(batch, batch.advantages_BT, loss_type="bnpo", entropy_coef=0.05)
        compare(near, "`entropy_coef`", batch, our_loss(batch, config, batch.advantages_BT), theirs)


def blocks():
    return batches(COUNT, blocks=True, gaps=False, empty=False)


def test_group_advantages_are_those_of_trl_at_their_epsilon(trl, near):
    for batch in blocks():
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        ours = group_advantages(batch.rewards_B, statistics, epsilon=1e-4)
        near("`scale_rewards=group`, epsilon 1e-4", ours, trl.grpo_advantages(batch))


def test_unscaled_advantages_are_those_of_trl(trl, near):
    for batch in blocks():
        ours = GRPO(DrGRPOConfig()).advantages(batch.scored()).advantages_BT[:, 0]
        near("`scale_rewards=none`", ours, trl.grpo_advantages(batch, scale_rewards="none"))


def test_a_response_without_a_reward_is_left_out_as_in_trl(trl, near):
    for batch in blocks():
        theirs = trl.grpo_advantages(batch, scale_rewards="none", unscored=[0])
        scored_B = torch.arange(len(batch.rewards_B)) > 0
        rewards_B = batch.rewards_B[scored_B]
        statistics = group_statistics(rewards_B, batch.groups_B[scored_B])
        ours = group_advantages(rewards_B, statistics, scale_by_std=False)
        near("a reward of `None`", ours, theirs[scored_B])


def test_leave_one_out_advantages_are_those_of_trl(trl, near):
    for batch in blocks():
        ours = GRPO(RLOOConfig()).advantages(batch.scored()).advantages_BT[:, 0]
        near("`RLOOTrainer`", ours, trl.rloo_advantages(batch), "advantages")


def test_the_gradient_of_rloo_is_that_of_trl_on_policy(trl, near):
    for batch in batches(COUNT, gaps=False, empty=False):
        losses = (
            our_loss(batch, RLOOConfig(), batch.row_advantages_BT, on_policy=True),
            trl.rloo_loss(batch, batch.advantages_BT[:, 0]),
        )
        found = [
            with_gradient(lambda logprobs_BT, loss=loss: loss(logprobs_BT)[0], batch.new_BT)[1]
            for loss in losses
        ]
        near("`RLOOTrainer`", *found, "gradient, on policy")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_rollout_weights_are_those_of_trl(trl, near, level, mode):
    for batch in blocks():
        longest = int(batch.mask_BT.sum(-1).max())
        ours = truncated_importance(batch.old_BT, batch.rollout_BT, batch.mask_BT, 1.3, level, mode)
        theirs = trl.scored(
            trl.GRPOTrainer,
            batch,
            use_vllm=True,
            vllm_importance_sampling_mode=f"{level}_{mode}",
            vllm_importance_sampling_clip_min=1 / 1.3 if mode == "mask" else None,
            vllm_importance_sampling_clip_max=1.3,
        )["importance_sampling_ratio"]
        mask_BT = batch.mask_BT[:, :longest]
        near(
            "`vllm_importance_sampling_mode`",
            ours[:, :longest] * mask_BT,
            theirs * mask_BT,
            f"{level} {mode}",
        )


@pytest.mark.parametrize(("longest", "buffer"), [(20, 4), (20, 20), (7, 1)])
def test_the_overlong_punishment_is_that_of_trl(trl, near, longest, buffer):
    lengths = list(range(30))
    theirs = trl.get_soft_overlong_punishment(longest, buffer)(completion_ids=[[1] * n for n in lengths])
    near("`get_soft_overlong_punishment`", -overlong(torch.tensor(lengths), longest, buffer), theirs)
