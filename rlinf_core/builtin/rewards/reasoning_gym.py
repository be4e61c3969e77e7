"""Reward by the scorer of the reasoning-gym task that asked the question."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import ReasoningGymRewardConfig
from rlinf_core.errors import RewardError


class ReasoningGymReward(Reward):
    """Scores rows of the dataset `reasoning_gym`. A scorer that raises on junk makes it unparsable."""

    def __init__(self, config: ReasoningGymRewardConfig) -> None:
        super().__init__(config)
        try:
            self._library = importlib.import_module("reasoning_gym")
        except ImportError as err:
            raise RewardError(
                "the reward reasoning_gym needs its package: pip install reasoning-gym"
            ) from err
        self._tasks: dict[str, Any] = {}  # Any: the library's dataset type

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [self._score(item) for item in items]

    def _score(self, item: RewardItem) -> RewardResult:
        if "task" not in item.meta or "entry" not in item.meta:
            return RewardResult(0.0, "error", "the row was not made by the dataset reasoning_gym")
        task = self._task(item.meta["task"], item.meta.get("options", {}))
        answer = self._answer(item.response)
        try:
            value = float(task.score_answer(answer=answer, entry=item.meta["entry"]))
        except Exception as err:  # several scorers of the library raise on answers they cannot read
            return RewardResult(0.0, "unparsable", f"{type(err).__name__}: {err}")
        return RewardResult(value)

    def _task(self, name: str, options: dict[str, Any]) -> Any:
        key = name + json.dumps(options, sort_keys=True, default=repr)
        if key not in self._tasks:
            self._tasks[key] = self._library.create_dataset(name, seed=0, size=1, **options)
        return self._tasks[key]

    def _answer(self, response: str) -> str:
        tag = self.config.tag
        _, opened, rest = response.rpartition(f"<{tag}>")
        inside, closed, _ = rest.partition(f"</{tag}>")
        return inside.strip() if opened and closed else response.strip()
