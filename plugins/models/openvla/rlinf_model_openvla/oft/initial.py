"""Where a small network that is trained from nothing starts. Axes: P patches, E embedding size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlinf_model_openvla.vision import LayerScale

if TYPE_CHECKING:
    from rlinf_model_openvla.vision import Encoder


def keep_variance(part: nn.Module) -> None:
    """Layers that pass on as much as they get (He et al. 2015), without biases and channel scales: what
    differs between two pictures is not drowned in what they have in common."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=(2.0 / layer.weight[0].numel()) ** 0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, LayerScale):
            nn.init.ones_(layer.scale_factor)


def place_patches(encoder: Encoder) -> None:
    """Sines and cosines of row and column, so that where a patch is need not be found out."""
    _, patches, size = encoder.pos_embed.shape
    with torch.no_grad():
        encoder.pos_embed.copy_(_waves(round(patches**0.5), size)[None])


def _waves(side: int, size: int) -> Tensor:
    """`[P, E]`; half a period over the picture, one, one and a half, ..."""
    place = torch.arange(side) * torch.pi / side
    rows_P, columns_P = (each.flatten() for each in torch.meshgrid(place, place, indexing="ij"))
    periods = torch.arange(1, size // 4 + 1)
    angles = [torch.outer(each, periods) for each in (columns_P, rows_P)]
    waves = torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
    return nn.functional.pad(waves, (0, size - waves.shape[1]))
