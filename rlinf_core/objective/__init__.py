"""What most algorithm plugins share: options and terms of the losses, rewards of decisions, trained rows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlinf_core.objective.critic_options import CriticOptions
from rlinf_core.objective.kl_options import KLPlace, RewardKLOptions
from rlinf_core.objective.options import PolicyOptions

if TYPE_CHECKING:
    from rlinf_core.objective.critic import value_terms
    from rlinf_core.objective.kl_reward import (
        KLCoefficient,
        Metrics,
        penalised_rewards,
        reference_kl,
        token_rewards,
    )
    from rlinf_core.objective.policy import aggregated, policy_terms, token_metric
    from rlinf_core.objective.rows import group_metrics, trained_mask

__all__ = [
    "CriticOptions",
    "KLCoefficient",
    "KLPlace",
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

_ON_TENSORS = ("critic", "kl_reward", "policy", "rows")


def __getattr__(name: str) -> Any:  # Any: a function or a class
    """What works on tensors is imported when it is asked for, so that options alone import no torch."""
    for module in _ON_TENSORS if name in __all__ else ():
        found = vars(importlib.import_module(f"{__name__}.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
