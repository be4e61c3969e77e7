"""SGLang 0.5.10: weights may be changed at any time."""

from __future__ import annotations

from typing import Any


def begin_update(engine: Any) -> None:  # Any: SGLang's engine
    """It need not be told."""


def end_update(engine: Any) -> None:  # Any: SGLang's engine
    """It need not be told."""
