"""vLLM 0.27: outputs do not name weight versions."""

from __future__ import annotations

from typing import Any


def label(engine: Any, version: int) -> None:  # Any: vLLM's engine
    """It has no place for it."""


def labels(completion: Any) -> frozenset[int] | None:  # Any: a completion of vLLM
    """Nothing is known."""
    return None
