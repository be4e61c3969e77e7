"""KL estimators, value loss, entropy, log-probabilities and the KL's coefficient against verl."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from crosscheck_batches import batches
from crosscheck_losses import with_gradient

from rlinf_core.objective.kl_reward import KLCoefficient
from rlinf_core.rl.aggregate import Aggregation, denominator, summed
from rlinf_core.rl.kl import kl_loss, kl_values
from rlinf_core.rl.logprobs import entropy, gather_logprobs
from rlinf_core.rl.values import value_loss

PEER = "verl"
COUNT = 200
NORM = 7


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_values_are_those_of_verl(verl, near, estimator):
    for batch in batches(COUNT, ratios="near"):
        theirs = verl.core_algos.kl_penalty(batch.new_BT, batch.reference_BT, estimator)
        near(f"`kl_penalty` {estimator}", kl_values(batch.new_BT, batch.reference_BT, estimator), theirs)


@pytest.mark.parametrize(("ours", "theirs"), [("k2", "k2"), ("k3", "k3"), ("k3-ratio", "k3+")])
def test_kl_losses_and_their_gradients_are_those_of_verl_on_policy(verl, near, ours, theirs):
    for batch in batches(COUNT, ratios="near"):
        found = [
            with_gradient(loss, batch.new_BT)
            for loss in (
                lambda x, b=batch: kl_loss(x, b.reference_BT, ours).sum(),
                lambda x, b=batch: verl.core_algos.kl_penalty(x, b.reference_BT, theirs).sum(),
            )
        ]
        near(f"`kl_penalty` {theirs}", found[0][0], found[1][0], "sum")
        near(f"`kl_penalty` {theirs}", found[0][1], found[1][1], "gradient")


@pytest.mark.parametrize("mode", get_args(Aggregation))
@pytest.mark.parametrize("clip", [0.1, 0.5])
def test_the_value_loss_is_that_of_verl(verl, near, mode, clip):
    name = "`compute_value_loss`"

    def ours(batch, values_BT):
        old_BT, returns_BT = batch.old_values_BT, batch.advantages_BT
        found = value_loss(values_BT, old_BT, returns_BT, clip=clip, huber_delta=None)
        fraction = (found.clipped_BT & batch.mask_BT).sum() / batch.mask_BT.sum()
        return summed(found.loss_BT, batch.mask_BT, mode, NORM) / denominator(batch.mask_BT, mode), fraction

    def theirs(batch, values_BT):
        columns = batch.advantages_BT, batch.old_values_BT, batch.weights_BT
        return verl.core_algos.compute_value_loss(values_BT, *columns, clip, mode, loss_scale_factor=NORM)

    for batch in batches(COUNT // 2):
        found = [
            with_gradient(lambda values_BT, side=side, b=batch: side(b, values_BT)[0], batch.values_BT)
            for side in (ours, theirs)
        ]
        near(name, found[0][0], found[1][0], "loss")
        near(name, found[0][1], found[1][1], "gradient")
        fractions = (side(batch, batch.values_BT)[1] for side in (ours, theirs))
        near(name, *fractions, "clip fraction")


def test_entropy_and_log_probabilities_are_those_of_verl(verl, near):
    generator = torch.Generator().manual_seed(0)
    for _ in range(COUNT):
        logits = torch.randn(3, 5, 17, generator=generator) * 4.0
        ids = torch.randint(0, 17, (3, 5), generator=generator)
        near("`entropy_from_logits`", entropy(logits), verl.functional.entropy_from_logits(logits))
        theirs = verl.functional.logprobs_from_logits(logits, ids)
        near("`logprobs_from_logits`", gather_logprobs(logits, ids), theirs)


def test_the_adaptive_kl_coefficient_is_that_of_verl(verl, near):
    generator = torch.Generator().manual_seed(0)
    ours, theirs = KLCoefficient(0.2, 0.05, 1000), verl.core_algos.AdaptiveKLController(0.2, 0.05, 1000)
    for kl in (torch.rand(COUNT, generator=generator) * 0.1).tolist():
        near("`AdaptiveKLController`", ours.begin_step(kl, 64), theirs.value)
        theirs.update(kl, 64)
