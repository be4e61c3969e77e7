"""Conformance checks of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from rlinf_core.api import RewardItem, RewardResult
from rlinf_core.api.reward import Verdict
from rlinf_core.testing.subject import Subject, expect

JUNK = (
    "",
    " \n\t",
    "\\boxed{",
    "\\frac{1}{0}",
    "}" * 50,
    "9" * 5000,
    "x" * 20_000,
    "\x00\ud83d\ufffd",
    "<answer></answer>",
    "nan",
    "日本語 ١٢٣",
)


def check_rewards_count(subject: Subject) -> None:
    """There is one result per item, in order, for any number of items."""
    reward = subject.build()
    items = [RewardItem("1+1=", text, answer="2") for text in ("2", "3", "two")]
    for count in range(len(items) + 1):
        results = reward.score(items[:count])
        expect(len(results) == count, f"{len(results)} results for {count} items; return one per item")
    expect(
        _values(reward.score(items[::-1])) == _values(reward.score(items))[::-1],
        "results of reversed items are not the reversed results; score each item by itself, in order",
    )


def check_rewards_junk(subject: Subject) -> None:
    """Responses of junk are scored, not raised on, and scores are finite."""
    reward = subject.build()
    for text in JUNK:
        for answer in ("2", ""):
            item = RewardItem("1+1=", text, answer=answer, finish="length")
            try:
                results = reward.score([item])
            except Exception as err:  # a reward may raise anything; its author wants the input
                expect(
                    False, f"the response {text[:40]!r} raises {type(err).__name__}: {err}; return a verdict"
                )
                return
            for value in _values(results):
                expect(math.isfinite(value), f"the response {text[:40]!r} scores {value}; scores are finite")


def check_rewards_results(subject: Subject) -> None:
    """Results are numbers, or RewardResult with a known verdict."""
    for result in subject.build().score([RewardItem("1+1=", text, answer="2") for text in ("2", *JUNK)]):
        if isinstance(result, RewardResult):
            known = get_args(Verdict)
            expect(result.verdict in known, f"verdict {result.verdict!r} is not one of {', '.join(known)}")
        else:
            expect(isinstance(result, int | float), f"a result is a {type(result).__name__}; return a float")


def check_rewards_repeat(subject: Subject) -> None:
    """The same response scores the same again, also in a new instance."""
    items = [RewardItem("1+1=", text, answer="2") for text in ("2", "3", "")]
    reward = subject.build()
    scores = [_values(each.score(items)) for each in (reward, reward, subject.build())]
    expect(scores[0] == scores[1] == scores[2], f"scores of equal responses differ: {scores}")


def _values(results: Sequence[float | RewardResult]) -> list[float]:
    return [result.value if isinstance(result, RewardResult) else float(result) for result in results]
