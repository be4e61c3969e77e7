"""What most algorithm plugins share: options and terms of the losses, rewards of decisions, trained rows."""

from rlinf_core.objective.critic import CriticOptions, value_terms
from rlinf_core.objective.kl_reward import (
    KLCoefficient,
    Metrics,
    RewardKLOptions,
    penalised_rewards,
    reference_kl,
    token_rewards,
)
from rlinf_core.objective.options import PolicyOptions
from rlinf_core.objective.policy import aggregated, policy_terms, token_metric
from rlinf_core.objective.rows import group_metrics, trained_mask

__all__ = [
    "CriticOptions",
    "KLCoefficient",
    "Metrics",
    "PolicyOptions",
    "RewardKLOptions",
    "aggregated",
    "group_metrics",
    "penalised_rewards",
    "policy_terms",
    "reference_kl",
    "token_metric",
    "token_rewards",
    "trained_mask",
    "value_terms",
]
