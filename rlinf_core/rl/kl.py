"""Estimators of the reverse KL divergence `KL(policy || reference)` from single samples.

With `d = log policy(x) - log reference(x)` for `x` drawn from the policy (Schulman, "Approximating
KL divergence", 2020):

    k1 = d                    unbiased value, high variance
    k2 = d^2 / 2              biased value
    k3 = exp(-d) - 1 + d      unbiased value, never negative

What a loss follows is the gradient, not the value. Differentiated through `d` at fixed samples:

    k1: E[grad log policy] = 0, so it pulls nowhere and is refused inside a loss
    k2: E[d * grad log policy] = the exact gradient of the reverse KL
    k3: E[(1 - exp(-d)) * grad log policy], the gradient of the *forward* KL; small-d approximation
    k3-ratio: ratio * k3 with `ratio = policy / sampler`: the exact gradient of the reverse KL

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch

from rlinf_core.errors import ConfigError
from rlinf_core.rl.precision import LOG_RATIO_LIMIT, at_least_float32, bounded_exp

if TYPE_CHECKING:
    from torch import Tensor

LossEstimator = Literal["k2", "k3", "k3-ratio"]
ValueEstimator = Literal["k1", "k2", "k3"]


def kl_values(logprobs: Tensor, reference_logprobs: Tensor, estimator: ValueEstimator = "k3") -> Tensor:
    """Estimates of the KL at each position, for metrics and for penalties inside a reward."""
    d = at_least_float32(logprobs) - at_least_float32(reference_logprobs)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    return k3_values(d)


def k3_values(d: Tensor) -> Tensor:
    """The estimate k3 of each `d`."""
    d = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(-d) + d


def kl_loss(
    logprobs: Tensor, reference_logprobs: Tensor, estimator: str, log_ratio: Tensor | None = None
) -> Tensor:
    """Estimates to be minimised, at each position. `log_ratio` (policy over sampler, with gradient)
    is used by `k3-ratio` alone; without it the policy is its own sampler."""
    check_loss_estimator(estimator)
    if estimator == "k2":
        return kl_values(logprobs, reference_logprobs, "k2")
    k3 = kl_values(logprobs, reference_logprobs, "k3")
    if estimator == "k3":
        return k3
    if log_ratio is None:
        log_ratio = logprobs - logprobs.detach()
    return bounded_exp(log_ratio) * k3


def check_loss_estimator(estimator: str, key: str = "kl_estimator") -> None:
    """Raises `ConfigError` for an estimator that a loss cannot use."""
    known = get_args(LossEstimator)
    if estimator == "k1":
        raise ConfigError(
            f"{key}: 'k1' cannot be used in a loss: its expected gradient is zero, so it would cost "
            f"compute and add noise only; use one of {', '.join(known)}"
        )
    if estimator not in known:
        raise ConfigError(f"{key}: {estimator!r} is not an estimator; use one of {', '.join(known)}")
