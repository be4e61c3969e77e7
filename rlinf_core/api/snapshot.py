"""The snapshot interface: a trainer's state at one moment, written while training goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path


class Snapshot(ABC):
    """What `Trainer.save` would have written when it was taken, on one rank."""

    size: int  # bytes that this rank will write

    @abstractmethod
    def write(self, path: Path) -> Sequence[Path]:
        """Write into this folder, which other ranks write into too; returns the files of this rank.

        Called once, in a thread of its own while the trainer trains: no collectives, and nothing that
        training changes is read. Raises `OSError` or `CheckpointError`.
        """
