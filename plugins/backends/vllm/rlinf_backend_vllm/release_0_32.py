"""vLLM 0.32: outputs name the weight versions that they were generated with."""

from __future__ import annotations

from typing import Any


def label(engine: Any, version: int) -> None:  # Any: vLLM's engine
    """By the engine itself, for every token from now on."""
    engine.set_weight_version(str(version))


def labels(completion: Any) -> frozenset[int] | None:  # Any: a completion of vLLM
    """Of all its tokens."""
    spans = completion.weight_versions
    return None if spans is None else frozenset(int(span.version) for span in spans)
