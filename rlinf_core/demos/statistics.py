"""What LeRobot keeps of each episode's columns: extremes, mean, deviation and how many frames they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.demos.frames import Columns, is_picture

_PICTURES = 100  # at most, evenly spread, whose pixels are counted

Statistics = dict[str, dict[str, list[Any]]]  # Any: nested lists of numbers


def statistics(columns: Columns) -> Statistics:
    """`{column: {min, max, mean, std, count}}` over the frames; pictures by channel, in 0..1."""
    return {
        name: _of_pictures(column) if is_picture(column) else _of_numbers(column)
        for name, column in columns.items()
    }


def _of_numbers(column: NDArray[Any]) -> dict[str, list[Any]]:
    values = column.reshape(len(column), -1).astype(np.float64)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    lists: dict[str, list[Any]] = {name: value.tolist() for name, value in found.items()}
    if column.dtype == np.bool_:
        lists |= {name: [bool(value) for value in lists[name]] for name in ("min", "max")}
    return lists | {"count": [len(column)]}


def _of_pictures(column: NDArray[np.uint8]) -> dict[str, list[Any]]:
    chosen = np.unique(np.linspace(0, len(column) - 1, min(len(column), _PICTURES)).astype(int))
    pixels = column[chosen].reshape(-1, 3).astype(np.float32) / 255.0
    found = {"min": pixels.min(0), "max": pixels.max(0), "mean": pixels.mean(0, dtype=np.float64)}
    found["std"] = pixels.std(0, dtype=np.float64)
    return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [len(chosen)]}
