"""Settings of the trackers that ship with the core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorBoardConfig:
    """Settings of `tensorboard`."""

    folder: str = "tensorboard"  # below the run's output folder


@dataclass(frozen=True)
class CsvTrackerConfig:
    """Settings of `csv`."""

    file: str = "metrics.csv"  # below the run's output folder
