"""A test plugin: REINFORCE with advantages whitened over the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.plugins import AlgorithmSpec, hookimpl


@dataclass(frozen=True)
class WhitenConfig:
    """Its one setting."""

    group_size: int = 4  # responses to a prompt


def needs(config: WhitenConfig) -> AlgorithmNeeds:
    """The whole batch before any gradient."""
    return AlgorithmNeeds(advantage_scope="batch", group_size=config.group_size)


class Whiten(Algorithm):
    """`(r - mean) / std` over every row of the step."""

    config: WhitenConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """The same at every decision of a row. `rows` tells how many were seen at once."""
        rewards_B = batch.rewards_B
        whitened_B = (rewards_B - rewards_B.mean()) / (rewards_B.std() + 1e-6)
        return Advantages(whitened_B[:, None] * batch.mask_BT, metrics={"rows": float(len(rewards_B))})

    def denominator(self, mask_BT: Tensor) -> float:
        """Decisions."""
        return float(mask_BT.sum())

    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """REINFORCE."""
        return LossTerms(-torch.sum(outputs.logprobs_BT * batch.advantages_BT * batch.mask_BT))


@hookimpl
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """One algorithm."""
    return [
        AlgorithmSpec(
            name="whiten",
            summary="REINFORCE with whitened rewards",
            config=WhitenConfig,
            target="whiten:Whiten",
            needs=needs,
        )
    ]
