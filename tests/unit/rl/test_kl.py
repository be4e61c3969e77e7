"""KL estimators: values, and expected gradients by full enumeration of a categorical."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlinf_core.errors import ConfigError
from rlinf_core.rl.kl import kl_loss, kl_values

LOGITS = torch.tensor([0.3, -1.2, 0.8, 0.0, -0.4], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.1, 0.9, -1.0], dtype=torch.float64).log_softmax(-1)


def exact_gradient() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    (logprobs.exp() * (logprobs - REFERENCE)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def expected_gradient(estimator: str) -> Tensor:
    """The mean of the loss's gradient over every action, weighted by its probability."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    each = kl_loss(logprobs, REFERENCE, estimator)
    (logprobs.detach().exp() * each).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_values_equal_hand_computed_numbers() -> None:
    policy, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert kl_values(policy, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_values(policy, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_values(policy, reference, "k3").item() == pytest.approx(0.5 - 1 + math.log(2), abs=1e-7)


def test_k1_and_k3_are_unbiased_values_of_the_reverse_kl() -> None:
    logprobs = LOGITS.log_softmax(-1)
    exact = (logprobs.exp() * (logprobs - REFERENCE)).sum().item()
    for estimator in ("k1", "k3"):
        mean = (logprobs.exp() * kl_values(logprobs, REFERENCE, estimator)).sum().item()  # type: ignore[arg-type]
        assert mean == pytest.approx(exact, rel=1e-5)


SAMPLER = torch.tensor([1.0, 0.2, -0.7, 0.5, 0.0], dtype=torch.float64).log_softmax(-1)


def sampled_gradient(estimator: str, weighted: bool) -> Tensor:
    """The mean gradient over actions that another policy draws, with or without importance weights."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    log_ratio = logprobs - SAMPLER
    each = kl_loss(logprobs, REFERENCE, estimator, log_ratio)
    weights = log_ratio.detach().exp() if weighted else torch.ones(5)
    (SAMPLER.exp() * weights * each).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_off_policy_the_ratio_inside_k3_and_weights_outside_k2_keep_the_gradient_exact() -> None:
    for estimator, weighted in (("k3-ratio", False), ("k2", True)):
        torch.testing.assert_close(
            sampled_gradient(estimator, weighted), exact_gradient(), rtol=1e-9, atol=1e-12
        )
    for estimator in ("k2", "k3"):
        assert (sampled_gradient(estimator, False) - exact_gradient()).abs().max() > 0.05


def test_off_policy_the_value_of_k3_with_ratio_is_still_the_reverse_kl() -> None:
    logprobs = LOGITS.log_softmax(-1)
    exact = (logprobs.exp() * (logprobs - REFERENCE)).sum()
    each = kl_loss(logprobs, REFERENCE, "k3-ratio", logprobs - SAMPLER)
    torch.testing.assert_close((SAMPLER.exp() * each).sum(), exact)


@pytest.mark.parametrize("estimator", ["k2", "k3-ratio"])
def test_k2_and_ratio_corrected_k3_follow_the_exact_gradient(estimator: str) -> None:
    torch.testing.assert_close(expected_gradient(estimator), exact_gradient(), rtol=1e-9, atol=1e-12)


def test_plain_k3_follows_the_gradient_of_the_forward_kl_instead() -> None:
    gradient = expected_gradient("k3")
    forward = LOGITS.softmax(-1) - REFERENCE.exp()  # of KL(reference || policy) with respect to logits
    torch.testing.assert_close(gradient, forward, rtol=1e-9, atol=1e-12)
    assert (gradient - exact_gradient()).abs().max() > 0.05


def test_k1_would_pull_nowhere_and_is_refused_in_a_loss() -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    (logprobs.detach().exp() * (logprobs - REFERENCE)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12
    with pytest.raises(
        ConfigError, match="kl_estimator: 'k1' cannot be used in a loss: its expected gradient"
    ):
        kl_loss(logprobs, REFERENCE, "k1")


def test_far_apart_policies_stay_finite() -> None:
    values = kl_values(torch.tensor([-300.0, 300.0]), torch.zeros(2), "k3")
    assert torch.isfinite(values).all()
