"""Registers the rewards that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.rewards.config import ExactConfig
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import RewardSpec

_ROOM = "rlinf_core.builtin.rewards"


@hookimpl
def rlinf_register_rewards() -> list[RewardSpec]:
    """Offer the rewards for text."""
    return [
        RewardSpec(
            name="exact",
            summary="1 if the response equals the answer",
            target=f"{_ROOM}.exact:Exact",
            config=ExactConfig,
        ),
    ]
