"""Decoupled clip and dynamic sampling policy optimisation (DAPO; Yu et al. 2025).

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf_algo_dapo.config import DAPOConfig
from rlinf_algo_dapo.plugin import needs
from rlinf_core.api import (
    Advantages,
    AlgorithmNeeds,
    ScoredBatch,
)
from rlinf_core.objective.algorithm import PolicyAlgorithm
from rlinf_core.objective.rows import group_metrics, trained_mask
from rlinf_core.rl.advantages import group_advantages, group_statistics, spread_over_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.objective.kl_reward import Metrics
    from rlinf_core.types import Experience


class DAPO(PolicyAlgorithm):
    """Group advantages of groups that differ; clip-higher; soft punishment of overlong responses."""

    config: DAPOConfig

    @property
    def needs(self) -> AlgorithmNeeds:
        """As the spec says."""
        return needs(self.config)

    def keep(self, group: Sequence[Experience]) -> bool:
        """Whether the raw rewards of the group's scored rows differ."""
        return len({self._raw(row) for row in group if row.error is None}) > 1

    def advantages(self, batch: ScoredBatch) -> Advantages:
        """`(r - mean) / std` of the group's rewards, overlong responses punished."""
        rewards_B = batch.rewards_B
        metrics: Metrics = {}
        if self.config.overlong_buffer:
            penalties_B = self._penalties(batch)
            rewards_B = rewards_B - penalties_B
            count = float(len(penalties_B))
            metrics["overlong"] = (float((penalties_B > 0).sum()), count)
            metrics["overlong_penalty"] = (float(penalties_B.sum()), count)
        statistics = group_statistics(rewards_B, batch.groups_B)
        mask_BT = trained_mask(batch, self.config)
        return Advantages(
            spread_over_tokens(group_advantages(rewards_B, statistics), mask_BT),
            mask_BT=mask_BT,
            metrics=metrics | group_metrics(statistics, self.config.algorithm),
        )

    def _raw(self, row: Experience) -> float | None:
        """The reward as scored, or the part of it that the filter looks at."""
        name = self.config.filter_metric
        if not name:
            return row.reward
        if name not in row.reward_parts:
            there = ", ".join(sorted(row.reward_parts)) or "none"
            raise self.config.error("filter_metric", f"no reward of that name; there are: {there}")
        return row.reward_parts[name]

    def _penalties(self, batch: ScoredBatch) -> Tensor:
        """What is taken from the reward of each row."""
        longest, buffer = batch.max_length, self.config.overlong_buffer
        if not longest:
            raise self.config.error("overlong_buffer", "the task has no longest response; set it to 0")
        if buffer > longest:
            raise self.config.error(
                "overlong_buffer", f"is more than the longest response allowed, {longest} tokens"
            )
        return self.config.overlong_penalty * overlong(batch.mask_BT.sum(-1), longest, buffer)


def overlong(lengths_B: Tensor, longest: int, buffer: int) -> Tensor:
    """0 up to `longest - buffer` tokens, then linearly up to 1 at `longest`, and 1 beyond.

    The soft overlong punishment (Yu et al. 2025, eq. 13) with its sign turned.
    """
    return ((lengths_B - (longest - buffer)) / buffer).clamp(0.0, 1.0)
