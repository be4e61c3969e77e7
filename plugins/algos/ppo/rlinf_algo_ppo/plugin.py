"""Registers the algorithm `ppo`."""

from __future__ import annotations

from rlinf_algo_ppo.config import PPOConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: PPOConfig) -> AlgorithmNeeds:
    """What PPO needs with this config."""
    return AlgorithmNeeds(
        advantage_scope="batch",
        group_size=config.group_size,
        critic=config.critic,
        reference=config.kl_coef > 0.0,
        entropy=config.entropy_coef > 0.0,
        length_limit=config.uses_length_limit,
        recompute_old=config.decoupled,
        max_staleness=config.max_staleness,
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
