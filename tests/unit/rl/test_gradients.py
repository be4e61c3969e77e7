"""Gradients of every loss, under every aggregation, against central finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from rlinf_core.rl.aggregate import Aggregation, denominator, summed
from rlinf_core.rl.kl import LossEstimator, kl_loss
from rlinf_core.rl.logprobs import entropy, fused_logprobs, gather_logprobs
from rlinf_core.rl.losses import clipped_policy_loss, log_ratio, sequence_log_ratio, weighted_policy_loss
from rlinf_core.rl.values import value_loss

Loss = Callable[[Tensor], Tensor]
STEP = 1e-6
MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)


def noise(seed: int, *shape: int) -> Tensor:
    """Numbers of which none lies within a step of a clip's edge."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


OLD, ADVANTAGES, REFERENCE, RETURNS = (noise(seed, 4, 5) for seed in range(1, 5))
NEW = OLD + 0.5 * noise(5, 4, 5)
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}


def frozen_weights(logprobs_BT: Tensor) -> Tensor:
    """CISPO's weights have no gradient, which a difference would see: they stay those of `NEW`."""
    ratio_BT = log_ratio(NEW, OLD, MASK)
    return weighted_policy_loss(logprobs_BT, ratio_BT, ADVANTAGES, **CLIPS).loss_BT


LOSSES: dict[str, Loss] = {
    "clipped": lambda x: clipped_policy_loss(log_ratio(x, OLD, MASK), ADVANTAGES, **CLIPS).loss_BT,
    "dual-clipped": lambda x: (
        clipped_policy_loss(log_ratio(x, OLD, MASK) + 1.2, ADVANTAGES, **CLIPS, dual_clip=3.0).loss_BT
    ),
    "sequence": lambda x: (
        clipped_policy_loss(sequence_log_ratio(log_ratio(x, OLD, MASK), MASK), ADVANTAGES, **CLIPS).loss_BT
    ),
    "cispo": frozen_weights,
    "value": lambda x: value_loss(x, OLD, RETURNS, clip=None, huber_delta=None).loss_BT,
    "clipped-value": lambda x: value_loss(x, OLD, RETURNS, clip=0.3, huber_delta=None).loss_BT,
    "huber-value": lambda x: value_loss(x, OLD, RETURNS, clip=0.3, huber_delta=0.7).loss_BT,
    **{
        f"kl-{name}": lambda x, name=name: kl_loss(x, REFERENCE, name, log_ratio(x, OLD, MASK))
        for name in get_args(LossEstimator)
    },
}


def differences(loss: Loss, at: Tensor) -> Tensor:
    """Central differences of a scalar."""
    found = torch.zeros_like(at)
    for place in range(at.numel()):
        shift = torch.zeros_like(at)
        shift.view(-1)[place] = STEP
        found.view(-1)[place] = (loss(at + shift) - loss(at - shift)) / (2 * STEP)
    return found


def assert_gradient(loss: Loss, at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    value = loss(at)
    assert value.dtype == torch.float64
    (gradient,) = torch.autograd.grad(value, at)
    torch.testing.assert_close(gradient, differences(loss, at.detach()), rtol=1e-6, atol=1e-8)
    return gradient


@pytest.mark.parametrize("mode", get_args(Aggregation))
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_loss_equals_differences_and_is_zero_off_the_mask(
    name: str, mode: Aggregation
) -> None:
    each = LOSSES[name]
    gradient = assert_gradient(lambda x: summed(each(x), MASK, mode, 7.0) / denominator(MASK, mode), NEW)
    assert not gradient[~MASK].any()
    assert gradient[MASK].any()


def test_every_branch_of_the_clips_was_met() -> None:
    ratio_BT = log_ratio(NEW, OLD, MASK)
    clipped = clipped_policy_loss(ratio_BT, ADVANTAGES, **CLIPS).clipped_BT[MASK]
    dual = clipped_policy_loss(ratio_BT + 1.2, ADVANTAGES, **CLIPS, dual_clip=3.0).dual_clipped_BT[MASK]
    values = value_loss(NEW, OLD, RETURNS, clip=0.3, huber_delta=0.7).clipped_BT[MASK]
    for branch in (clipped, dual, values):
        assert 0 < branch.sum() < len(branch)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_and_entropies_have_the_gradient_of_differences(temperature: float) -> None:
    logits, ids, scale = noise(7, 4, 6), torch.tensor([0, 5, 2, 2]), noise(8, 4)

    def fused(x: Tensor) -> Tensor:
        logprobs, spread = fused_logprobs(x, ids, temperature, want_entropy=True, chunk_rows=3)
        assert spread is not None
        return (logprobs * scale + spread * scale.square()).sum()

    def plain(x: Tensor) -> Tensor:
        spread = entropy(x / temperature)
        return (gather_logprobs(x, ids, temperature) * scale + spread * scale.square()).sum()

    torch.testing.assert_close(assert_gradient(fused, logits), assert_gradient(plain, logits))
