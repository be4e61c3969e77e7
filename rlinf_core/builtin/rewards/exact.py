"""Reward 1 for a response equal to the answer, else 0."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import ExactConfig


class Exact(Reward):
    """Compares text with text; an item without an answer is an error, not a 0."""

    config: ExactConfig

    def score(self, items: Sequence[RewardItem]) -> list[float | RewardResult]:
        return [self._score(item) for item in items]

    def _score(self, item: RewardItem) -> float | RewardResult:
        if item.answer is None:
            return RewardResult(0.0, "error", "the row has no answer to compare with")
        return float(self._normal(item.response) == self._normal(str(item.answer)))

    def _normal(self, text: str) -> str:
        if self.config.strip:
            text = text.strip()
        if self.config.ignore_case:
            text = text.casefold()
        return " ".join(text.split()) if self.config.collapse_spaces else text
