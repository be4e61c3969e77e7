"""The reward of the counting job, the same function for both sides; imports nothing."""

from __future__ import annotations

from typing import Any


def credit(response: str, answer: str) -> float:
    """Share of positions, of the longer text, at which response and answer agree."""
    right = sum(a == b for a, b in zip(response, answer, strict=False))
    return right / max(len(response), len(answer), 1)


def score(prompts: list[str], responses: list[str], answers: list[str], **_: Any) -> list[float]:
    """The form that rlinf's `python` reward calls."""
    return [credit(response, answer) for response, answer in zip(responses, answers, strict=True)]
