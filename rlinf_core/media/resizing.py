"""Pictures in other sizes; simulators in environments of their own use it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def resized(pictures: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """`[..., size, size, 3]` of `[..., H, W, 3]`: each pixel the mean of what it covers, or the nearest one
    of fewer."""
    height, width = pictures.shape[-3:-1]
    if (height, width) == (size, size):
        return np.asarray(pictures, dtype=np.uint8)
    rows, columns = np.arange(size) * height // size, np.arange(size) * width // size
    if min(height, width) < size:
        return np.ascontiguousarray(pictures[..., rows, :, :][..., columns, :], dtype=np.uint8)
    sums = np.add.reduceat(np.add.reduceat(pictures.astype(np.int64), rows, axis=-3), columns, axis=-2)
    areas = np.outer(np.diff(rows, append=height), np.diff(columns, append=width))[..., None]
    return np.asarray((sums + areas // 2) // areas, dtype=np.uint8)
