"""Registers the algorithm `grpo`."""

from __future__ import annotations

from rlinf_algo_grpo.config import GRPOConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: GRPOConfig) -> AlgorithmNeeds:
    """What GRPO needs with this config."""
    return AlgorithmNeeds(
        advantage_scope="group",
        group_size=config.group_size,
        reference=config.kl_in_loss,
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
            name="grpo",
            summary="Group-relative policy optimisation, without a critic",
            config=GRPOConfig,
            target="rlinf_algo_grpo.algorithm:GRPO",
            needs=needs,
        )
    ]
