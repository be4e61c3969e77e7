"""Policy losses, their gradients and metrics against verl."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from crosscheck_batches import batches
from crosscheck_losses import compare, our_loss, with_gradient

from rlinf_core.objective import PolicyOptions
from rlinf_core.rl.aggregate import Aggregation, denominator, summed
from rlinf_core.rl.importance import truncated_importance

PEER = "verl"
MODES = get_args(Aggregation)
NORM = 7
COUNT = 200


def options(mode, **chosen):
    norm = {"max_tokens_norm": NORM} if mode == "seq-mean-token-sum-norm" else {}
    return PolicyOptions(loss_aggregation=mode, **norm, **chosen)


@pytest.mark.parametrize("mode", MODES)
def test_aggregation_is_that_of_verl(verl, near, mode):
    for batch in batches(COUNT):
        ours = summed(batch.values_BT, batch.mask_BT, mode, NORM) / denominator(batch.mask_BT, mode)
        theirs = verl.core_algos.agg_loss(batch.values_BT, batch.weights_BT, mode, loss_scale_factor=NORM)
        near("`agg_loss`", ours, theirs, mode)


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_on_two_ranks_add_up_as_in_verl(verl, near, mode):
    for batch in batches(COUNT):
        cut = int(batch.mask_BT.any(-1).nonzero()[0]) + 1
        parts = [slice(None, cut), slice(cut, None)]
        sums = [summed(batch.values_BT[part], batch.mask_BT[part], mode, NORM) for part in parts]
        theirs = [
            verl.core_algos.agg_loss(
                batch.values_BT[part],
                batch.weights_BT[part],
                mode,
                dp_size=2,
                batch_num_tokens=int(batch.mask_BT.sum()),
                global_batch_size=int(batch.mask_BT.any(-1).sum()),
                loss_scale_factor=NORM,
            )
            for part in parts
        ]
        near("`agg_loss` on two ranks", sum(sums) / denominator(batch.mask_BT, mode), sum(theirs) / 2, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dual_clip", [None, 3.0, 1.5])
def test_the_clipped_loss_is_that_of_verl(verl, near, mode, dual_clip):
    config = options(mode, clip_ratio=0.2, clip_ratio_high=0.28, dual_clip=dual_clip)
    chosen = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": dual_clip or 1e12}
    for batch in batches(COUNT // 2, ratios="extreme"):
        ours = our_loss(batch, config, batch.advantages_BT)
        theirs = verl.policy_loss(
            batch, batch.advantages_BT, loss_agg_mode=mode, loss_scale_factor=NORM, **chosen
        )
        mine, other = compare(near, "`vanilla`", batch, ours, theirs)
        near("`vanilla`", mine["clip_fraction"], other["pg_clipfrac"], "clip fraction")
        near("`vanilla`", mine["dual_clip_fraction"], other["pg_clipfrac_lower"], "dual clip fraction")


@pytest.mark.parametrize("mode", MODES)
def test_sequence_ratios_are_those_of_verl(verl, near, mode):
    config = options(mode, clip_ratio=0.03, clip_ratio_high=0.04, importance_level="sequence")
    chosen = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04, "loss_mode": "gspo"}
    for batch in batches(COUNT):
        ours = our_loss(batch, config, batch.row_advantages_BT)
        theirs = verl.policy_loss(
            batch, batch.row_advantages_BT, loss_agg_mode=mode, loss_scale_factor=NORM, **chosen
        )
        mine, other = compare(near, "`gspo`", batch, ours, theirs)
        near("`gspo`", mine["clip_fraction"], other["pg_clipfrac"], "clip fraction")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("low", [0.2, 1.0])
def test_clipped_weights_are_those_of_verl(verl, near, mode, low):
    config = options(mode, policy_loss="weighted", clip_ratio=low, clip_ratio_high=0.5)
    chosen = {"clip_ratio_low": low, "clip_ratio_high": 0.5, "loss_mode": "cispo"}
    for batch in batches(COUNT // 2, ratios="extreme"):
        ours = our_loss(batch, config, batch.advantages_BT)
        theirs = verl.policy_loss(
            batch, batch.advantages_BT, loss_agg_mode=mode, loss_scale_factor=NORM, **chosen
        )
        mine, other = compare(near, "`cispo`", batch, ours, theirs)
        near("`cispo`", mine["clip_fraction"], other["pg_clipfrac"], "clip fraction")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("estimator", "theirs"), [("k3", "k3"), ("k2", "k2"), ("k2", "mse")])
def test_the_whole_loss_with_kl_and_entropy_is_that_of_verl(verl, near, mode, estimator, theirs):
    config = options(mode, dual_clip=3.0, kl_coef=0.1, kl_estimator=estimator, entropy_coef=0.05)
    chosen = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": theirs, "entropy_coeff": 0.05}
    for batch in batches(COUNT // 2, ratios="near"):
        whole = verl.whole_loss(batch, loss_agg_mode=mode, loss_scale_factor=NORM, **chosen)
        compare(near, "`ppo_loss`", batch, our_loss(batch, config, batch.advantages_BT), whole)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_rollout_weights_are_those_of_verl(verl, near, level, mode):
    threshold = 1.3 if mode == "truncate" else f"{1 / 1.3}_1.3"
    name = "`compute_rollout_correction_weights`"
    for batch in batches(COUNT):
        ours = truncated_importance(batch.old_BT, batch.rollout_BT, batch.mask_BT, 1.3, level, mode)
        ours = ours * batch.mask_BT
        if ours.any():  # verl's metrics divide by the mean weight
            near(name, ours, verl.rollout_weights(batch, level, threshold), f"{level} {mode}")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_a_loss_with_rollout_weights_is_that_of_verl(verl, near, level, mode):
    chosen = {"importance_cap": 2.0, "importance_cap_level": level, "importance_cap_mode": mode}
    config = options("token-mean", dual_clip=3.0, **chosen)
    for batch in batches(COUNT):
        weights_BT = verl.rollout_weights(batch, level, 2.0 if mode == "truncate" else "0.5_2.0")
        theirs = verl.policy_loss(batch, batch.advantages_BT, weights_BT)
        ours = our_loss(batch, config, batch.advantages_BT)
        compare(near, "`vanilla` with rollout weights", batch, ours, theirs)


def test_what_stands_off_the_mask_changes_no_gradient():
    config = options("token-mean", kl_coef=0.1, entropy_coef=0.05, importance_cap=2.0)

    def gradient(batch):
        loss = our_loss(batch, config, batch.advantages_BT)
        return with_gradient(lambda logprobs_BT: loss(logprobs_BT)[0], batch.new_BT)[1]

    for batch in batches(20):
        before = gradient(batch)
        for column in (batch.new_BT, batch.old_BT, batch.reference_BT, batch.rollout_BT, batch.entropy_BT):
            column[~batch.mask_BT] = torch.nan
        torch.testing.assert_close(gradient(batch), before)
