"""Datasets of episodes on disk, in the format of LeRobot."""

from __future__ import annotations

from rlinf_core.demos.lerobot import append_to_dataset, read_dataset, write_dataset

__all__ = ["append_to_dataset", "read_dataset", "write_dataset"]
