"""The summed policy loss of a micro-batch with its metrics. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from rlinf_core.api.algorithm import LossTerms
from rlinf_core.errors import ConfigError
from rlinf_core.rl.aggregate import denominator, summed
from rlinf_core.rl.importance import truncated_importance
from rlinf_core.rl.kl import k3_values, kl_loss
from rlinf_core.rl.losses import clipped_policy_loss, log_ratio, sequence_log_ratio, weighted_policy_loss
from rlinf_core.rl.masks import kept

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import PolicyOutputs, TrainBatch
    from rlinf_core.objective.options import PolicyOptions
    from rlinf_core.rl.losses import PolicyLoss

    Metrics = dict[str, tuple[Tensor | float, Tensor | float]]


def policy_terms(outputs: PolicyOutputs, batch: TrainBatch, options: PolicyOptions) -> LossTerms:
    """`policy loss * importance weight + kl_coef * KL - entropy_coef * entropy`, summed.

    Where old log-probabilities are those of the step's start, weight and clip are apart: decoupled PPO
    (Hilton et al. 2021).
    """
    mask_BT, holed_BT = batch.mask_BT, batch.holed_mask_BT
    logprobs_BT = kept(outputs.logprobs_BT, holed_BT)
    log_ratio_BT = log_ratio(logprobs_BT, batch.old_logprobs_BT, holed_BT)
    whole_row = options.importance_level == "sequence"
    bounded_BT = sequence_log_ratio(log_ratio_BT, mask_BT) if whole_row else log_ratio_BT
    policy = _policy_loss(logprobs_BT, bounded_BT, batch, options)
    seen = _ratios(policy, bounded_BT.detach(), log_ratio_BT.detach())
    if options.dual_clip is not None:
        seen["dual_clip_fraction"] = policy.dual_clipped_BT
    loss_BT = policy.loss_BT
    if options.importance_cap is not None or options.decoupled:
        weights_BT = _weights(logprobs_BT, batch, options)
        loss_BT = loss_BT * weights_BT
        seen["importance_weight"] = weights_BT
    terms = LossTerms(aggregated(loss_BT, batch, options))
    terms.metrics["policy_loss"] = (terms.total.detach(), loss_count(batch, options))
    if outputs.entropy_BT is not None:
        seen["entropy"] = outputs.entropy_BT
    if options.entropy_coef > 0.0:
        entropy_BT = _present(outputs.entropy_BT, "entropy_coef", "the policy computed no entropy", options)
        terms.total = terms.total - options.entropy_coef * aggregated(entropy_BT, batch, options)
    if options.kl_in_loss:
        reference_BT = _present(
            batch.reference_logprobs_BT,
            "kl_coef",
            "the batch has no reference log-probabilities",
            options,
        )
        kl_BT = kl_loss(
            logprobs_BT, reference_BT.masked_fill(~mask_BT, 0.0), options.kl_estimator, log_ratio_BT
        )
        terms.total = terms.total + options.kl_coef * aggregated(kl_BT, batch, options)
        seen["kl"] = kl_BT
    terms.metrics |= _whole_ratio_metrics(token_metrics(seen, batch))
    return terms


def token_metric(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and count for a mean over trained decisions."""
    return kept(values_BT.detach().float(), mask_BT).sum(), mask_BT.sum()


def token_metrics(named: Mapping[str, Tensor], batch: TrainBatch) -> Metrics:
    """`token_metric` of several at once, as numbers: small operations are what costs, and so is waiting for a
    device."""
    stacked_MBT = torch.stack([values_BT.detach().float() for values_BT in named.values()])
    sums_M = kept(stacked_MBT, batch.holed_mask_BT).sum((1, 2)).tolist()
    return {name: (total, batch.decisions) for name, total in zip(named, sums_M, strict=True)}


def loss_count(batch: TrainBatch, options: PolicyOptions) -> float:
    """What a loss is divided by where it is shown: its denominator, or with `token-sum`, which has none that
    adds up over micro-batches, the number of decisions."""
    if options.loss_aggregation in ("token-mean", "token-sum"):
        return float(batch.decisions)
    return denominator(batch.mask_BT, options.loss_aggregation)


def aggregated(values_BT: Tensor, batch: TrainBatch, options: PolicyOptions) -> Tensor:
    """The summed part of these rows under the options' aggregation."""
    norm = options.max_tokens_norm or batch.max_length
    if options.loss_aggregation == "seq-mean-token-sum-norm" and not norm:
        raise options.error("max_tokens_norm", "the task has no longest response; give a number above 0")
    return summed(values_BT, batch.holed_mask_BT, options.loss_aggregation, norm or 1.0)


def _policy_loss(
    logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TrainBatch, options: PolicyOptions
) -> PolicyLoss:
    low = options.clip_ratio
    high = low if options.clip_ratio_high is None else options.clip_ratio_high
    if options.policy_loss == "weighted":
        return weighted_policy_loss(
            logprobs_BT, log_ratio_BT, batch.advantages_BT, clip_low=low, clip_high=high
        )
    return clipped_policy_loss(
        log_ratio_BT, batch.advantages_BT, clip_low=low, clip_high=high, dual_clip=options.dual_clip
    )


def _ratios(policy: PolicyLoss, bounded_BT: Tensor, log_ratio_BT: Tensor) -> dict[str, Tensor]:
    """`bounded_BT` is what the clips see: the log-ratio of a decision, or of its whole row."""
    return {
        "ratio": bounded_BT.exp(),
        "clip_fraction": policy.clipped_BT,
        "clip_fraction_low": policy.clipped_BT & (bounded_BT < 0),
        "approx_kl": k3_values(-log_ratio_BT),
    }


def _whole_ratio_metrics(seen: Metrics) -> Metrics:
    """With those that follow from others: what is clipped and not low is high."""
    (clipped, count), (low, _) = seen["clip_fraction"], seen["clip_fraction_low"]
    return {"dual_clip_fraction": (0.0, count), **seen, "clip_fraction_high": (clipped - low, count)}


def _weights(logprobs_BT: Tensor, batch: TrainBatch, options: PolicyOptions) -> Tensor:
    """The trainer's policy before the step over the rollout's, capped."""
    start_BT = logprobs_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    cap = float("inf") if options.importance_cap is None else options.importance_cap
    return truncated_importance(
        start_BT,
        batch.rollout_logprobs_BT,
        batch.mask_BT,
        cap,
        options.importance_cap_level,
        options.importance_cap_mode,
    )


def _present(values_BT: Tensor | None, name: str, reason: str, options: PolicyOptions) -> Tensor:
    if values_BT is None:
        raise ConfigError(f"{options.algorithm}: algo.{name} is set, but {reason}")
    return values_BT
