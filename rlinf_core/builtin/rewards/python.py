"""Reward by the user's own function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
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
        _check_parameters(self._function, config.target)

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


def _check_parameters(function: Callable[..., Any], target: str) -> None:  # Any: it is the user's
    """Before anything runs. Functions of C that do not tell their parameters are called as they are."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(prompts=[], responses=[], answers=[], metas=[])
    except TypeError as err:
        raise RewardError(
            f"reward.target {target}: the function takes {signature}, which does not fit ({err}). It is "
            "called with prompts=, responses=, answers= and metas=, lists of equal length, and returns a "
            "list of numbers; **_ takes those that it does not use"
        ) from err
