"""Registers the algorithm `reinforce_pp`."""

from __future__ import annotations

from rlinf_algo_reinforce_pp.config import ReinforcePPConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: ReinforcePPConfig) -> AlgorithmNeeds:
    """What REINFORCE++ needs with this config."""
    return config.needs(
        advantage_scope="batch",
        group_size=config.group_size,
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
