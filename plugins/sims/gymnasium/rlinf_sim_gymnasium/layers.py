"""The environments behind an environment: its wrappers, itself, and those it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium


def layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """Outermost first, each once."""
    seen: set[int] = set()
    waiting = [env]
    while waiting:
        layer = waiting.pop(0)
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            waiting += [value for value in vars(layer).values() if isinstance(value, gymnasium.Env)]
