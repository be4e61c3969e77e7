"""Reward for programs: the response's Python is run against the tests of the answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import CodeConfig
from rlinf_core.builtin.sandbox import Ran, Sandbox
from rlinf_core.errors import RewardError

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """One test: Python that runs behind the program, or what it prints for what it is given."""

    check: str = ""
    given: str = ""
    printed: str | None = None

    def passed(self, ran: Ran) -> bool:
        """White space at the ends of lines does not count."""
        if not ran.whole or self.printed is None:
            return ran.whole
        return _lines(ran.output) == _lines(self.printed)


class Code(Reward):
    """1 if the program in the response's last code block passes every test; with `partial`, their share.

    The answer is Python with assertions (a text, or a list of them), or `{"inputs": [...], "outputs": [...]}`
    of a program that reads and prints.
    """

    def __init__(self, config: CodeConfig) -> None:
        super().__init__(config)
        self._sandbox = Sandbox(config.memory_mb)
        self._sandbox.check("reward code")

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [self._score(item) for item in items]

    def _score(self, item: RewardItem) -> RewardResult:
        blocks = _BLOCK.findall(item.response)
        if not blocks:
            return RewardResult(0.0, "unparsable", "no block of code (```python ... ```)")
        cases, passed, why = cases_of(item.answer), 0, ""
        end = time.monotonic() + self.config.timeout_s
        for case in cases:
            left = end - time.monotonic()
            if left <= 0:
                why = why or f"it took longer than {self.config.timeout_s:g} s"
                break
            programs = [blocks[-1], case.check] if case.check else [blocks[-1]]
            ran = self._sandbox.run(programs, timeout_s=left, given=case.given)
            if case.passed(ran):
                passed += 1
                continue
            why = why or ran.complaint or "it printed something else"
            if not self.config.partial:
                break
        share = passed / len(cases)
        return RewardResult(share if self.config.partial else float(share == 1.0), "ok", why)


def cases_of(answer: Any) -> list[Case]:
    """The tests of an answer. Raises `RewardError` for one that has none."""
    told = _read(answer)
    if isinstance(told, str) and told.strip():
        return [Case(check=told)]
    if isinstance(told, list) and told and all(isinstance(each, str) for each in told):
        return [Case(check=each) for each in told]
    if isinstance(told, Mapping):
        inputs, outputs = told.get("inputs"), told.get("outputs")
        if isinstance(inputs, list) and isinstance(outputs, list) and 0 < len(inputs) == len(outputs):
            pairs = zip(inputs, outputs, strict=True)
            return [Case(given=str(given), printed=str(printed)) for given, printed in pairs]
    raise RewardError(
        f"reward code: the answer {str(answer)[:80]!r} has no tests; it is Python with assertions (a text "
        'or a list of texts), or {"inputs": [...], "outputs": [...]} of equal length'
    )


def _read(answer: Any) -> Any:  # Any: whatever the dataset holds
    """JSON in a text, or the text."""
    if isinstance(answer, str) and answer.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(answer)
        except ValueError:  # Python may begin like this too
            return answer
    return answer


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
