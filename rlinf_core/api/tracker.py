"""The tracker interface: where metrics and samples go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Tracker(ABC):
    """Records one run, in a thread of its own. A tracker that raises, or keeps a run waiting for two minutes,
    is reported once and switched off; the run goes on."""

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    @abstractmethod
    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        """Called once before the first step; `run_config` is the composed config, JSON-able."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Scalars of one step."""

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """A few samples as JSON-able records."""

    def log_picture(self, step: int, name: str, file: Path) -> None:
        """A PNG file, such as the last frame of an episode."""

    def log_video(self, step: int, name: str, file: Path) -> None:
        """An MP4 file of an episode."""

    def finish(self, error: BaseException | None) -> None:
        """Called once at the end; `error` is None for a good end."""
