"""Two-operand arithmetic with computed rows."""

from __future__ import annotations

import operator
import random
from dataclasses import replace

from rlinf_core.builtin.datasets.config import ArithmeticConfig
from rlinf_core.builtin.datasets.synthetic import SyntheticDataset
from rlinf_core.types import Message, Row

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Arithmetic(SyntheticDataset):
    """Prompt `07+35=`, answer `042`; a wrong demonstration shows the difference (for `-`: the sum), or asks a
    tool for it."""

    config: ArithmeticConfig

    def draw(self, rng: random.Random) -> tuple[str, Row]:
        sign, digits = self.config.operator, self.config.digits
        left, right = rng.randrange(10**digits), rng.randrange(10**digits)
        result = OPERATIONS[sign](left, right)
        shown, wrong = result, rng.random() < self.config.noise
        if wrong:
            shown = left + right if sign == "-" else abs(left - right)
        question = f"{self._write(left, digits)}{sign}{self._write(right, digits)}="
        width = 2 * digits if sign == "*" else digits + 1
        row = Row(
            prompt=question,
            answer=self._write(result, width),
            demonstration=self._write(shown, width),
        )
        if self.config.tool:
            other = "+" if sign == "-" else "-"
            asked = f"{left}{other if wrong else sign}{right}"
            said = str(OPERATIONS[other if wrong else sign](left, right))
            row = replace(row, demonstration=self._turns(asked, said))
        return question, row

    def _turns(self, asked: str, said: str) -> list[Message]:
        """Let the tool compute, and say what it says."""
        call = {"function": {"name": self.config.tool, "arguments": {"expression": asked}}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": said},
            {"role": "assistant", "content": said},
        ]

    def _write(self, number: int, width: int) -> str:
        return f"{number:0{width}d}" if self.config.zero_pad else str(number)
