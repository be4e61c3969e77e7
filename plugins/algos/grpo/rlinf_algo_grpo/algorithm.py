"""Group-relative policy optimisation (GRPO; Shao et al., "DeepSeekMath", 2024).

Axes: B rows, T decision steps.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.plugin import needs
from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.errors import ConfigError
from rlinf_core.rl.advantages import group_advantages, group_statistics, spread_over_tokens
from rlinf_core.rl.aggregate import denominator, summed
from rlinf_core.rl.importance import truncated_importance
from rlinf_core.rl.kl import kl_loss, kl_values
from rlinf_core.rl.losses import clipped_policy_loss, log_ratio, sequence_log_ratio

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(Algorithm):
    """Advantages relative to the group; clipped policy loss; optional KL and entropy terms."""

    config: GRPOConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """`(r - baseline) / std` within each group, the same at every token of a response."""
        statistics = group_statistics(batch.rewards_B, batch.groups_B)
        singles = int((statistics.sizes_G == 1).sum())
        if singles:
            warnings.warn(
                f"grpo: {singles} groups have one row only, so no baseline: their advantage is 0",
                RuntimeWarning,
                stacklevel=2,
            )
        advantages_B = group_advantages(
            batch.rewards_B,
            statistics,
            baseline=self.config.baseline,
            scale_by_std=self.config.scale_by_std,
        )
        rewards_B = batch.rewards_B.float()
        metrics = {
            "zero_variance_groups": float(statistics.equal_G.float().mean()),
            "reward_mean": float(rewards_B.mean()),
            "reward_std": float(rewards_B.std(correction=0)),
            "groups_of_one": float(singles),
        }
        return Advantages(spread_over_tokens(advantages_B, batch.mask_BT), metrics=metrics)

    def denominator(self, mask_BT: Tensor) -> float:
        """Of `loss_aggregation`."""
        return denominator(mask_BT, self.config.loss_aggregation)

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The clipped policy loss, plus `kl_coef * KL - entropy_coef * entropy`, summed."""
        mask_BT = batch.mask_BT
        logprobs_BT = outputs.logprobs_BT.masked_fill(~mask_BT, 0.0)
        log_ratio_BT = log_ratio(logprobs_BT, batch.old_logprobs_BT, mask_BT)
        terms = self._policy_terms(logprobs_BT, log_ratio_BT, batch)
        if outputs.entropy_BT is not None:
            terms.metrics["entropy"] = _tokens(outputs.entropy_BT, mask_BT)
        if self.config.entropy_coef > 0.0:
            terms.total = terms.total - self.config.entropy_coef * self._sum(_entropy(outputs), mask_BT)
        if self.config.kl_coef > 0.0:
            reference_BT = _reference(batch).masked_fill(~mask_BT, 0.0)
            kl_BT = kl_loss(logprobs_BT, reference_BT, self.config.kl_estimator, log_ratio_BT)
            terms.total = terms.total + self.config.kl_coef * self._sum(kl_BT, mask_BT)
            terms.metrics["kl"] = _tokens(kl_BT, mask_BT)
        return terms

    def gradient_free(self, batch: ScoredBatch, advantages: Advantages) -> Tensor:
        """Rows without advantage, as long as no KL or entropy term moves them."""
        if self.config.kl_coef > 0.0 or self.config.entropy_coef > 0.0:
            return super().gradient_free(batch, advantages)
        return (advantages.advantages_BT == 0).all(-1)

    def _policy_terms(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TrainBatch) -> LossTerms:
        config, mask_BT = self.config, batch.mask_BT
        by_sequence = config.importance_level == "sequence"
        policy = clipped_policy_loss(
            sequence_log_ratio(log_ratio_BT, mask_BT) if by_sequence else log_ratio_BT,
            batch.advantages_BT,
            clip_low=config.clip_ratio,
            clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
            dual_clip=config.dual_clip,
        )
        moved_BT = kl_values(-log_ratio_BT, torch.zeros_like(log_ratio_BT), "k3")
        terms = LossTerms(
            self._sum(policy.loss_BT, mask_BT),
            {
                "clip_fraction": _tokens(policy.clipped_BT, mask_BT),
                "dual_clip_fraction": _tokens(policy.dual_clipped_BT, mask_BT),
                "approx_kl": _tokens(moved_BT, mask_BT),
            },
        )
        if config.importance_cap is not None:
            start_BT = logprobs_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT
            weights_BT = truncated_importance(
                start_BT, batch.rollout_logprobs_BT, mask_BT, config.importance_cap, config.importance_level
            )
            terms.total = self._sum(policy.loss_BT * weights_BT, mask_BT)
            terms.metrics["importance_weight"] = _tokens(weights_BT, mask_BT)
        terms.metrics["policy_loss"] = (terms.total.detach(), self.denominator(mask_BT))
        return terms

    def _sum(self, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return summed(values_BT, mask_BT, self.config.loss_aggregation, self.config.max_tokens_norm or 1.0)


def _tokens(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and count for a mean over trained decisions."""
    return values_BT.detach().float().masked_fill(~mask_BT, 0.0).sum(), mask_BT.sum()


def _entropy(outputs: PolicyOutputs) -> Tensor:
    if outputs.entropy_BT is None:
        raise ConfigError("grpo: algo.entropy_coef is set, but the policy computed no entropy")
    return outputs.entropy_BT


def _reference(batch: TrainBatch) -> Tensor:
    if batch.reference_logprobs_BT is None:
        raise ConfigError("grpo: algo.kl_coef is set, but the batch has no reference log-probabilities")
    return batch.reference_logprobs_BT
