"""Registers the tracker `wandb`."""

from __future__ import annotations

from rlinf_core.plugins import TrackerSpec, hookimpl
from rlinf_tracker_wandb.config import WandbConfig


@hookimpl
def rlinf_register_trackers() -> list[TrackerSpec]:
    """Offer Weights & Biases."""
    return [
        TrackerSpec(
            name="wandb",
            summary="Metrics, samples, pictures and videos for Weights & Biases",
            target="rlinf_tracker_wandb.tracker:Wandb",
            config=WandbConfig,
        )
    ]
