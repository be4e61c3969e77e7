"""What one process does to score responses: load the rewards, call them, judge what they return."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.errors import RewardError, summary

VERDICTS = ("ok", "unparsable", "timeout", "error")


@dataclass(frozen=True)
class PoolReward:
    """One weighted term: its name, `module:Class`, config dataclass and weight."""

    name: str
    target: str
    config: Any = None  # Any: each plugin has its own config dataclass
    weight: float = 1.0

    @property
    def label(self) -> str:
        """The reward and where its code is: `target` of its config where that names the user's own."""
        own = getattr(self.config, "target", None)
        return f"reward {self.name!r} ({own if isinstance(own, str) else self.target})"


@dataclass
class ScoredItem:
    """The weighted score of one response; `value` is None if a term could not be computed."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)  # before weighting, by reward name
    verdicts: dict[str, str] = field(default_factory=dict)
    error: str | None = None


class LoadedReward:
    """A reward made ready in this process, with its results checked."""

    def __init__(self, term: PoolReward) -> None:
        self.label = term.label
        self.reward = _construct(term)

    def score(self, items: Sequence[RewardItem], retries: int) -> list[RewardResult]:
        """One result an item. A call that raises is repeated item by item to find who is to blame.

        Raises `RewardError` for a wrong number of results, or if the reward itself raises one.
        """
        if len(items) == 1:
            return [self._single(items[0], retries)]
        try:
            return self._call(items)
        except RewardError:
            raise
        except Exception:  # the culprit is found, and reported, one item at a time
            return [self._single(item, retries) for item in items]

    def _single(self, item: RewardItem, retries: int) -> RewardResult:
        try:
            return self._call([item])[0]
        except RewardError:
            raise
        except Exception as err:  # user code: its failure becomes the item's verdict
            if retries > 0:
                return self._single(item, retries - 1)
            return RewardResult(0.0, "error", f"{self.label} raised {summary(err)}")

    def _call(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        results = list(self.reward.score(items))
        if len(results) != len(items):
            raise RewardError(
                f"{self.label} returned {len(results)} results for {len(items)} responses; "
                "return one per response, in order"
            )
        return [self._checked(result) for result in results]

    def _checked(self, result: object) -> RewardResult:
        given = result if isinstance(result, RewardResult) else None
        try:
            value = float(given.value if given else result)  # type: ignore[arg-type]  # checked here
        except (TypeError, ValueError):
            return RewardResult(0.0, "error", f"{self.label} returned {result!r}, which is not a number")
        if given and given.verdict not in VERDICTS:
            known = ", ".join(VERDICTS)
            return RewardResult(0.0, "error", f"{self.label}: verdict {given.verdict!r} is none of {known}")
        if given and given.verdict in ("timeout", "error"):
            return RewardResult(0.0, given.verdict, f"{self.label}: {given.detail or given.verdict}")
        if not math.isfinite(value):
            return RewardResult(0.0, "error", f"{self.label} returned {value}")
        return RewardResult(value, given.verdict, given.detail) if given else RewardResult(value)


def combine(terms: Sequence[PoolReward], results: Sequence[RewardResult]) -> ScoredItem:
    """The weighted sum of one response's results; `results` ends at the first term without a score."""
    scored = ScoredItem(value=0.0)
    total = 0.0
    for term, result in zip(terms, results, strict=False):
        scored.verdicts[term.name] = result.verdict
        if result.verdict in ("timeout", "error"):
            scored.error = scored.error or result.detail
            continue
        scored.parts[term.name] = result.value
        total += term.weight * result.value
    scored.value = total if scored.error is None else None
    return scored


def _construct(term: PoolReward) -> Reward:
    module, _, attribute = term.target.partition(":")
    try:
        reward: Reward = getattr(importlib.import_module(module), attribute)(term.config)
    except RewardError:
        raise
    except Exception as err:  # plugin code: any failure to load it is told in one line
        raise RewardError(f"{term.label} cannot be loaded: {summary(err)}") from err
    return reward
