"""What is put into pictures: another table behind robot and objects, and textures over them.

Axes: B environments, H and W pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rlinf_sim_maniskill.catalogue import Catalogue
from rlinf_sim_maniskill.variants import Variant

Tensor = torch.Tensor


class Overlay:
    """`front` are the numbers in segmentations of what is not replaced: the robot and the things."""

    def __init__(self, catalogue: Catalogue, variant: Variant) -> None:
        self._tables = catalogue.tables
        self._variant = variant
        self.front = torch.zeros(0, dtype=torch.long)

    def put(self, rgb_BHW3: Tensor, segmentation_BHW: Tensor, tables: Sequence[int | None]) -> Tensor:
        """The pictures as the table of each environment has them; as they are where there is none."""
        front_BHW = torch.isin(
            segmentation_BHW, self.front.to(segmentation_BHW.device, segmentation_BHW.dtype)
        )
        changed = rgb_BHW3.float()
        for b, number in enumerate(tables):
            if number is not None:
                changed[b] = self._composed(changed[b], front_BHW[b], number)
        return changed.round().clamp(0, 255).to(torch.uint8)

    def _composed(self, rgb_HW3: Tensor, front_HW: Tensor, number: int) -> Tensor:
        table, size = self._tables[number], (front_HW.shape[0], front_HW.shape[1])
        behind_HW3 = picture(table.picture, *size).to(rgb_HW3.device)
        whole_HW3 = torch.where(front_HW[..., None], rgb_HW3, behind_HW3)
        top, left, bottom, right = _box(front_HW)
        if self._variant.texture:
            patch = picture(table.texture, bottom - top, right - left).to(rgb_HW3.device)
            strength_HW1 = self._variant.texture * table.mix * front_HW[top:bottom, left:right, None].float()
            part = whole_HW3[top:bottom, left:right]
            whole_HW3[top:bottom, left:right] = part + strength_HW1 * (patch - part)
        if self._variant.noise:  # a window of a texture of twice the size follows the robot
            y, x = (top + bottom) // 2, (left + right) // 2
            window = picture(table.texture, 2 * size[0], 2 * size[1])[y : y + size[0], x : x + size[1]]
            strength = self._variant.noise * table.mix
            whole_HW3 = whole_HW3 + strength * (window.to(rgb_HW3.device) - whole_HW3)
        return whole_HW3


def _box(front_HW: Tensor) -> tuple[int, int, int, int]:
    """Rows and columns around what is True; the whole picture if nothing is."""
    rows = torch.nonzero(front_HW.any(dim=1)).flatten().tolist()
    columns = torch.nonzero(front_HW.any(dim=0)).flatten().tolist()
    if not rows:
        return 0, 0, front_HW.shape[0], front_HW.shape[1]
    return rows[0], columns[0], rows[-1] + 1, columns[-1] + 1


def picture(path: Path, height: int, width: int) -> Tensor:
    """`[height, width, 3]` from a file, float32."""
    image = _read(path).resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(image, dtype=np.float32).copy())


@functools.lru_cache(maxsize=64)
def _read(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")
