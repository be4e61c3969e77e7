"""Registers the trackers that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.trackers.config import CsvTrackerConfig, TensorBoardConfig
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import TrackerSpec


@hookimpl
def rlinf_register_trackers() -> list[TrackerSpec]:
    """Offer TensorBoard and CSV files."""
    return [
        TrackerSpec(
            name="tensorboard",
            summary="Metrics and samples for TensorBoard",
            target="rlinf_core.builtin.trackers.tensorboard:TensorBoard",
            config=TensorBoardConfig,
        ),
        TrackerSpec(
            name="csv",
            summary="Metrics as one CSV file",
            target="rlinf_core.builtin.trackers.csv:CsvTracker",
            config=CsvTrackerConfig,
        ),
    ]
