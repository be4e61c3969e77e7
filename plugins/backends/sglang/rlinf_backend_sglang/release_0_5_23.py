"""SGLang 0.5.23: weights are changed between the beginning and the end of an update, and at no other time."""

from __future__ import annotations

from typing import Any

from rlinf_core.errors import ModelError


def begin_update(engine: Any) -> None:  # Any: SGLang's engine
    """Layers that were packed in place are unpacked."""
    success, message = engine.begin_weight_update()
    if not success:
        raise ModelError(f"rollout sglang: SGLang begins no update: {message}")


def end_update(engine: Any) -> None:  # Any: SGLang's engine
    """And packed again."""
    success, message = engine.end_weight_update()
    if not success:
        raise ModelError(f"rollout sglang: SGLang does not end an update: {message}")
