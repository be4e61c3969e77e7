"""Base of datasets whose rows are computed from (seed, split, index)."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod

from rlinf_core.api.dataset import Dataset
from rlinf_core.errors import DataError
from rlinf_core.types import Row

EVAL_SHARE = 16  # one question of this many belongs to evaluation
MAX_DRAWS = 10_000


class SyntheticDataset(Dataset):
    """Draws questions until one falls in this split; the split is a property of the question."""

    version = 1  # raise when the rows of the same config, split and seed change
    varied_by = "data.digits"  # the setting that makes more different questions

    @abstractmethod
    def draw(self, rng: random.Random) -> tuple[str, Row]:
        """A question's identity and its row."""

    def __len__(self) -> int:
        size: int = self.config.size if self.split == "train" else self.config.eval_size
        return size

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        rng = random.Random(f"{self.seed}/{self.split}/{index}")
        for _ in range(MAX_DRAWS):
            question, row = self.draw(rng)
            if is_eval(question) == (self.split == "eval"):
                return row
        raise DataError(
            f"{type(self).__name__} has too few different questions for a {self.split} split "
            f"({MAX_DRAWS} draws found none); raise {self.varied_by}"
        )

    def fingerprint(self) -> str:
        text = f"{type(self).__name__} {self.version} {self.config} {self.split} {self.seed}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_eval(question: str) -> bool:
    """Whether the question is kept for evaluation, in every run."""
    return hashlib.sha256(question.encode()).digest()[0] % EVAL_SHARE == 0
