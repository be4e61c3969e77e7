"""The reward interface: text in, numbers out, in a process that may be killed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "unparsable", "timeout", "error"]


@dataclass(frozen=True)
class RewardItem:
    """One response to score."""

    prompt: str
    response: str
    answer: Any = None  # as the dataset gave it
    meta: Mapping[str, Any] = field(default_factory=dict)
    finish: str = "stop"


@dataclass(frozen=True)
class RewardResult:
    """A score with its verdict: `unparsable` is a legitimate 0, `timeout` and `error` are no score."""

    value: float
    verdict: Verdict = "ok"
    detail: str = ""


class Reward(ABC):
    """One reward function. Constructed with its config dataclass, in the process that scores."""

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    @abstractmethod
    def score(self, items: Sequence[RewardItem]) -> Sequence[float | RewardResult]:
        """One result per item, in order."""
