"""Sort a string of digits: a task that a tiny model learns within a minute."""

from __future__ import annotations

import random

from rlinf_core.builtin.datasets.config import SortDigitsConfig
from rlinf_core.builtin.datasets.synthetic import SyntheticDataset
from rlinf_core.types import Row


class SortDigits(SyntheticDataset):
    """Prompt `352901=`, answer `012359`; some demonstrations are wrong, so that RL has work to do."""

    config: SortDigitsConfig

    def draw(self, rng: random.Random) -> tuple[str, Row]:
        digits = "".join(rng.choice("0123456789") for _ in range(self.config.digits))
        answer = "".join(sorted(digits))
        demonstration = answer
        if rng.random() < self.config.noise:
            demonstration = rng.choice([digits, answer[::-1]])
        return digits, Row(prompt=f"{digits}=", answer=answer, demonstration=demonstration)
