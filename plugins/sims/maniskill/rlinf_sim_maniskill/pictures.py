"""Sizes of pictures. Axes: N environments, H and W pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def resized(pixels_NHW3: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """`[N, size, size, 3]`, each pixel the mean of what it covers, or the nearest one of fewer."""
    height, width = pixels_NHW3.shape[1:3]
    if (height, width) == (size, size):
        return pixels_NHW3
    rows, columns = np.arange(size) * height // size, np.arange(size) * width // size
    if min(height, width) < size:
        return np.ascontiguousarray(pixels_NHW3[:, rows][:, :, columns])
    sums = np.add.reduceat(np.add.reduceat(pixels_NHW3.astype(np.int64), rows, axis=1), columns, axis=2)
    areas = np.outer(np.diff(rows, append=height), np.diff(columns, append=width))[..., None]
    return np.asarray((sums + areas // 2) // areas, dtype=np.uint8)
