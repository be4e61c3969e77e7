"""The dataset interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rlinf_core.types import Row

Split = Literal["train", "eval"]


class Dataset(ABC):
    """Rows by position. Constructed with its config, a split and the run's seed.

    The same config, split and seed give the same rows in the same order in every process.
    Raises `DataError` for missing, empty or unusable data.
    """

    def __init__(self, config: Any, split: Split, seed: int) -> None:
        self.config = config  # Any: each plugin has its own config dataclass
        self.split = split
        self.seed = seed

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Row: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """A short digest of the content; a resumed run compares it."""
