"""Pictures as the vision tower takes them. Axes: M pictures, H height, W width."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def prepare(pictures_MHW3: Tensor, size: int) -> Tensor:
    """uint8 to float32 `[M, 3, size, size]` between -1 and 1: scaled with its proportions kept, in the middle
    of black."""
    height, width = pictures_MHW3.shape[1:3]
    shown = pictures_MHW3.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    scale = size / max(height, width)
    target = max(1, round(height * scale)), max(1, round(width * scale))
    if target != (height, width):
        shown = functional.interpolate(shown, target, mode="bilinear", antialias=True, align_corners=False)
    above, left = (size - target[0]) // 2, (size - target[1]) // 2
    around = (left, size - target[1] - left, above, size - target[0] - above)
    return (
        functional.pad(shown.clamp(-1.0, 1.0), around, value=-1.0) if any(around) else shown.clamp(-1.0, 1.0)
    )


def stack(cameras: list[Tensor], size: int) -> Tensor | None:
    """`[M, cameras, 3, size, size]` of each camera's pictures; None without cameras."""
    if not cameras:
        return None
    return torch.stack([prepare(pictures_MHW3, size) for pictures_MHW3 in cameras], dim=1)
