"""Reward 1 for a response whose final answer is mathematically equal to the expected one."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import MathConfig
from rlinf_core.builtin.rewards.math_text import (
    bare_list,
    choice,
    final_answer,
    normal,
    same_word,
    unreadable,
    unworked,
)
from rlinf_core.errors import RewardError


class Math(Reward):
    """Compares by math-verify, after the repairs of `math_text`. The pool guards it with a deadline."""

    config: MathConfig

    def __init__(self, config: MathConfig) -> None:
        super().__init__(config)
        try:
            self._library = importlib.import_module("math_verify")
        except ImportError as err:
            raise RewardError("the reward math needs its package: pip install math-verify") from err
        # It warns at every call that its own timeout, which needs the main thread's alarm, is off.
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)
        self._parse = lru_cache(maxsize=4096)(self._parse_now)

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [self._score(item) for item in items]

    def _score(self, item: RewardItem) -> RewardResult:
        if item.answer is None:
            return RewardResult(0.0, "error", "the row has no answer to compare with")
        given = final_answer(item.response)
        if given is None:
            return RewardResult(0.0, "unparsable", "no final answer found")
        if unreadable(given):
            return RewardResult(0.0, "unparsable", f"{unreadable(given)} in {given!r}")
        expected = normal(final_answer(str(item.answer)) or str(item.answer))
        if reason := unworked(expected, given):
            return RewardResult(0.0, "unparsable", f"{reason} in {given!r}")
        return RewardResult(float(self._equal(expected, normal(given))))

    def _equal(self, expected: str, given: str) -> bool:
        if expected == given:
            return True
        if choice(expected) and choice(given):
            return choice(expected) == choice(given)
        word = same_word(expected, given)
        if word is not None:
            return word
        members, found = bare_list(expected), bare_list(given)
        if members and found:
            return self._same_members(members, found)
        return bool(
            self._library.verify(
                self._parse(expected),
                self._parse(given),
                float_rounding=self.config.digits,
                timeout_seconds=None,
            )
        )

    def _same_members(self, expected: Sequence[str], given: Sequence[str]) -> bool:
        """Equal in any order, counted with repetition."""
        left = list(given)
        for member in expected:
            match = next((other for other in left if self._equal(normal(member), normal(other))), None)
            if match is None:
                return False
            left.remove(match)
        return not left

    def _parse_now(self, text: str) -> list[Any]:  # Any: sympy expressions
        parsed: list[Any] = self._library.parse(
            f"${text}$",
            [self._library.LatexExtractionConfig(), self._library.ExprExtractionConfig()],
            parsing_timeout=None,
        )
        return parsed
