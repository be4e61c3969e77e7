"""What most algorithm plugins share: options and terms of the policy loss, and which rows are trained."""

from rlinf_core.objective.options import PolicyOptions
from rlinf_core.objective.policy import aggregated, policy_terms, token_metric
from rlinf_core.objective.rows import group_metrics, trained_mask

__all__ = [
    "PolicyOptions",
    "aggregated",
    "group_metrics",
    "policy_terms",
    "token_metric",
    "trained_mask",
]
