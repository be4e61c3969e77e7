"""Registers the algorithm `dapo`."""

from __future__ import annotations

from rlinf_algo_dapo.config import DAPOConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl


def needs(config: DAPOConfig) -> AlgorithmNeeds:
    """What DAPO needs with this config."""
    return config.needs(
        advantage_scope="group",
        group_size=config.group_size,
        max_rounds=config.max_rounds if config.dynamic_sampling else 0,
        length_limit=config.uses_length_limit or config.overlong_buffer > 0,
        logprob_level=config.logprob_level,
    )


@hookimpl
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """The one algorithm of this distribution."""
    return [
        AlgorithmSpec(
            name="dapo",
            summary="GRPO with clip-higher, dynamic sampling and a punishment of overlong responses",
            config=DAPOConfig,
            target="rlinf_algo_dapo.algorithm:DAPO",
            needs=needs,
        )
    ]
