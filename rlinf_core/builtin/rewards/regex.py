"""Reward for responses that match a regular expression, and its preset for tagged sections."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import FormatConfig, RegexConfig


class Regex(Reward):
    """`value` for a match; with `group`, only if that group equals the answer."""

    def __init__(self, config: RegexConfig) -> None:
        super().__init__(config)
        flags = f"(?{config.flags})" if config.flags else ""
        self._pattern = re.compile(flags + config.pattern)
        self._match = self._pattern.fullmatch if config.full else self._pattern.search
        self._group: int | str = int(config.group) if config.group.isdigit() else config.group

    def score(self, items: Sequence[RewardItem]) -> list[float | RewardResult]:
        return [self._score(item) for item in items]

    def _score(self, item: RewardItem) -> float | RewardResult:
        found = self._match(item.response)
        if self._group == "":
            return float(self.config.value) if found else 0.0
        if found is None:
            return RewardResult(0.0, "unparsable", "the pattern does not match")
        if item.answer is None:
            return RewardResult(0.0, "error", "the row has no answer to compare with")
        equal = (found[self._group] or "").strip() == str(item.answer).strip()
        return float(self.config.value) if equal else 0.0


class Format(Regex):
    """`value` for a response that is `<think>...</think><answer>...</answer>` and nothing else."""

    def __init__(self, config: FormatConfig) -> None:
        any_tag = "|".join(config.tags)
        body = rf"(?:(?!</?(?:{any_tag})>).)*"
        sections = r"\s*".join(f"<{tag}>{body}</{tag}>" for tag in config.tags)
        super().__init__(RegexConfig(rf"\s*{sections}\s*", flags="s", full=True, value=config.value))
