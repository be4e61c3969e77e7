"""Registers the tracker `mlflow`."""

from __future__ import annotations

from rlinf_core.plugins import TrackerSpec, hookimpl
from rlinf_tracker_mlflow.config import MLflowConfig


@hookimpl
def rlinf_register_trackers() -> list[TrackerSpec]:
    """Offer MLflow."""
    return [
        TrackerSpec(
            name="mlflow",
            summary="Metrics, samples, pictures and videos for MLflow",
            target="rlinf_tracker_mlflow.tracker:MLflow",
            config=MLflowConfig,
        )
    ]
