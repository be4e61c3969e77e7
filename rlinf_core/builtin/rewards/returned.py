"""Reward that an outside agent's program gives its own episode."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.api.reward import Reward, RewardItem, RewardResult


class Returned(Reward):
    """The number that `agent.program` has returned; an error where it has returned none."""

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [self._one(item) for item in items]

    def _one(self, item: RewardItem) -> RewardResult:
        value = item.meta.get("returned")
        if value is None:
            return RewardResult(0.0, "error", "agent.program has returned no number")
        return RewardResult(float(value))
