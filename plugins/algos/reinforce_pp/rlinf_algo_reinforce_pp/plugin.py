"""Registers the algorithm `reinforce_pp`."""

from __future__ import annotations

from rlinf_algo_reinforce_pp.config import ReinforcePPConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: ReinforcePPConfig) -> AlgorithmNeeds:
    """What REINFORCE++ needs with this config."""
    return AlgorithmNeeds(
        advantage_scope="batch",
        group_size=config.group_size,
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
            name="reinforce_pp",
            summary="REINFORCE++: advantages whitened over the whole batch, without a critic",
            config=ReinforcePPConfig,
            target="rlinf_algo_reinforce_pp.algorithm:ReinforcePP",
            needs=needs,
        )
    ]
