"""Reward by the user's own function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import PythonConfig
from rlinf_core.errors import ConfigError, RewardError
from rlinf_core.functions import load_function


class PythonReward(Reward):
    """Calls `function(prompts=, responses=, answers=, metas=)`, lists of equal length; one number each back.

    A call holds any number of a step's samples. None is for a response that the function cannot score.
    """

    def __init__(self, config: PythonConfig) -> None:
        super().__init__(config)
        try:
            self._function = load_function(config.target, "reward.target")
        except ConfigError as err:
            raise RewardError(str(err)) from err

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        values = self._function(
            prompts=[item.prompt for item in items],
            responses=[item.response for item in items],
            answers=[item.answer for item in items],
            metas=[dict(item.meta) for item in items],
        )
        try:
            count = len(values)
        except TypeError as err:
            raise RewardError(
                f"{self.config.target} returned {type(values).__name__}, not a list of numbers"
            ) from err
        if count != len(items):
            raise RewardError(
                f"{self.config.target} returned {count} rewards for {len(items)} responses; "
                "return one number per response, in order"
            )
        return [self._checked(value) for value in values]

    def _checked(self, value: Any) -> RewardResult:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            return RewardResult(0.0, "error", f"{self.config.target} returned {value!r}, not a finite number")
        return RewardResult(number)
