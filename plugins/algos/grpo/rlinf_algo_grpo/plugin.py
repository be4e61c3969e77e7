"""Registers the algorithm `grpo` and its published relatives."""

from __future__ import annotations

from rlinf_algo_grpo.config import GRPOConfig
from rlinf_algo_grpo.presets import CISPOConfig, DrGRPOConfig, GSPOConfig, ReMaxConfig, RLOOConfig
from rlinf_core.api import AlgorithmNeeds
from rlinf_core.plugins import AlgorithmSpec, hookimpl

SUMMARIES: dict[type[GRPOConfig], str] = {
    GRPOConfig: "Group-relative policy optimisation, without a critic",
    DrGRPOConfig: "GRPO without division by standard deviations and lengths",
    GSPOConfig: "GRPO with one policy ratio a response",
    RLOOConfig: "REINFORCE with the mean reward of the group's other responses as baseline",
    CISPOConfig: "GRPO that bounds the weights of tokens and clips no gradient",
    ReMaxConfig: "REINFORCE with the reward of the greedy response as baseline",
}


def needs(config: GRPOConfig) -> AlgorithmNeeds:
    """What GRPO needs with this config."""
    greedy = config.baseline == "greedy"
    return config.needs(
        advantage_scope="sample" if greedy and not config.filters else "group",
        group_size=config.group_size,
        greedy_baseline=greedy,
        logprob_level=config.logprob_level,
    )


@hookimpl
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """One algorithm under several names, which differ in their defaults."""
    return [
        AlgorithmSpec(
            name=config.algorithm,
            summary=summary,
            config=config,
            target="rlinf_algo_grpo.algorithm:GRPO",
            needs=needs,
        )
        for config, summary in SUMMARIES.items()
    ]
