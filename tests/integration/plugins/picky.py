"""A test plugin: REINFORCE against the group's mean or the greedy response, on groups that differ."""

from __future__ import annotations

from collections.abc import Sequence
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
from rlinf_core.types import Experience


@dataclass(frozen=True)
class PickyConfig:
    """What it asks for."""

    group_size: int = 4  # responses to a prompt
    max_rounds: int = 8  # 0 keeps every group
    least: float = 0.0  # groups whose rewards differ by no more are rejected
    greedy: bool = False  # the baseline is the greedy response's reward
    reference: bool = False


def needs(config: PickyConfig) -> AlgorithmNeeds:
    """As set."""
    return AlgorithmNeeds(
        advantage_scope="group",
        group_size=config.group_size,
        max_rounds=config.max_rounds,
        greedy_baseline=config.greedy,
        reference=config.reference,
    )


class Picky(Algorithm):
    """`r - mean` of the group, or `r - greedy`."""

    config: PickyConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def keep(self, group: Sequence[Experience]) -> bool:
        """Whether the rewards lie apart."""
        rewards = [float(row.reward or 0.0) for row in group]
        return max(rewards) - min(rewards) > self.config.least

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """The same at every decision of a row. `groups` tells how many there were."""
        if self.config.greedy:
            assert batch.baselines_B is not None
            centred_B = batch.rewards_B - batch.baselines_B
        else:
            same_BB = (batch.groups_B[:, None] == batch.groups_B[None]).float()
            centred_B = batch.rewards_B - same_BB @ batch.rewards_B / same_BB.sum(-1)
        metrics = {"groups": (float(len(batch.groups_B.unique())), 1.0)}
        return Advantages(centred_B[:, None] * batch.mask_BT, metrics=metrics)

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
            name="picky",
            summary="REINFORCE on groups that differ",
            config=PickyConfig,
            target="picky:Picky",
            needs=needs,
        )
    ]
