"""A convolutional encoder of camera pictures. Axes: M pictures, H height, W width, F features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlinf_core.errors import ModelError
from rlinf_model_mlp_policy.steady import PICTURES, steadily

if TYPE_CHECKING:
    from rlinf_model_mlp_policy.config import MLPPolicyConfig

SMALLEST = 36  # pixels that the three kernels need


class PictureEncoder(nn.Module):
    """uint8 `[..., H, W, 3]` to `[..., F]`: the three convolutions of Mnih et al. 2015, with fewer channels
    by default, then one linear layer."""

    def __init__(self, shape: Sequence[int], config: MLPPolicyConfig) -> None:
        super().__init__()
        height, width, colours = shape
        if min(height, width) < SMALLEST:
            raise ModelError(
                f"model mlp_policy needs pictures of {SMALLEST} x {SMALLEST} pixels or more; the simulator "
                f"shows {height} x {width}"
            )
        first, second, third = config.image_channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(colours, first, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(first, second, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(second, third, 3),
            nn.ReLU(),
        )
        rows, columns = (((size - 8) // 4 + 1 - 4) // 2 + 1 - 2 for size in (height, width))
        self.features = nn.Sequential(nn.Linear(third * rows * columns, config.image_features), nn.ReLU())

    def forward(self, pictures: Tensor, steady: bool = False) -> Tensor:
        """Brightness 0..255 is scaled to 0..1. `steady`: to the same bits whatever is beside a picture."""
        scaled_MHW3 = pictures.flatten(0, -4).to(torch.float32) / 255.0
        planes = scaled_MHW3.permute(0, 3, 1, 2)
        maps = steadily(self.convolutions, planes, PICTURES) if steady else self.convolutions(planes)
        flat = maps.flatten(1)
        features_MF: Tensor = steadily(self.features, flat) if steady else self.features(flat)
        return features_MF.view(*pictures.shape[:-3], -1)
