"""Registers the tracker `swanlab`."""

from __future__ import annotations

from rlinf_core.plugins import TrackerSpec, hookimpl
from rlinf_tracker_swanlab.config import SwanLabConfig


@hookimpl
def rlinf_register_trackers() -> list[TrackerSpec]:
    """Offer SwanLab."""
    return [
        TrackerSpec(
            name="swanlab",
            summary="Metrics, samples and pictures for SwanLab",
            target="rlinf_tracker_swanlab.tracker:SwanLab",
            config=SwanLabConfig,
        )
    ]
