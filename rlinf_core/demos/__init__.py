"""Datasets of episodes on disk, in the format of LeRobot."""

from __future__ import annotations

from rlinf_core.demos.lerobot import read_dataset, write_dataset

__all__ = ["read_dataset", "write_dataset"]
