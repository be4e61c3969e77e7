"""Registers the algorithm `ppo`."""

from __future__ import annotations

from rlinf_algo_ppo.config import PPOConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: PPOConfig) -> AlgorithmNeeds:
    """What PPO needs with this config."""
    return config.needs(
        advantage_scope="batch",
        group_size=config.group_size,
        critic=config.critic,
        logprob_level=config.logprob_level,
    )


@hookimpl
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """The one algorithm of this distribution."""
    return [
        AlgorithmSpec(
            name="ppo",
            summary="Proximal policy optimisation, with a critic",
            config=PPOConfig,
            target="rlinf_algo_ppo.algorithm:PPO",
            needs=needs,
        )
    ]
