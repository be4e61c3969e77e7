"""Penalty for long responses."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.api.reward import Reward, RewardItem
from rlinf_core.builtin.rewards.config import LengthConfig


class Length(Reward):
    """0 up to `free` characters, then falling linearly to -`penalty` at `limit`."""

    config: LengthConfig

    def score(self, items: Sequence[RewardItem]) -> list[float]:
        return [-self.config.penalty * self._excess(len(item.response)) for item in items]

    def _excess(self, characters: int) -> float:
        share = (characters - self.config.free) / (self.config.limit - self.config.free)
        return min(1.0, max(0.0, share))
