"""What the encoders are shown of a simulator's pictures. Axes: N pictures, E encoders, H height, W width, S
side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

_MEANS = ((0.484375, 0.455078125, 0.40625), (0.5, 0.5, 0.5))
_STDS = ((0.228515625, 0.2236328125, 0.224609375), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Pictures:
    """Side of the square, and mean and standard deviation of colours for each encoder."""

    size: int
    means: tuple[tuple[float, ...], ...] = _MEANS
    stds: tuple[tuple[float, ...], ...] = _STDS

    @classmethod
    def of(cls, size: int, preprocessor: Mapping[str, Any] | None) -> Pictures:
        """As a checkpoint's `preprocessor_config.json` says (JSON values), or as openvla-7b's does."""
        settings = preprocessor or {}
        applied = settings.get("tvf_normalize_params") or [
            {"mean": mean, "std": std}
            for mean, std in zip(settings.get("means", _MEANS), settings.get("stds", _STDS), strict=True)
        ]
        means, stds = (tuple(tuple(map(float, each[name])) for each in applied) for name in ("mean", "std"))
        return cls(size, means, stds)

    def pixels(self, pictures: Tensor, crop_area: float = 1.0) -> Tensor:
        """uint8 `[N, H, W, 3]` to `[N, 6, S, S]`: cropped about the centre, made square regardless of
        proportions by antialiased bicubic interpolation to whole brightnesses, and normalised twice."""
        shown = _cropped(pictures.permute(0, 3, 1, 2).contiguous().float(), crop_area)
        if shown.shape[-2:] != (self.size, self.size):
            shown = functional.interpolate(shown, (self.size, self.size), mode="bicubic", antialias=True)
            shown = shown.round().clamp(0, 255)
        means_E311, stds_E311 = (shown.new_tensor(each)[..., None, None] for each in (self.means, self.stds))
        scaled = shown[:, None] * (1.0 / (255.0 * stds_E311))
        return scaled.sub_(means_E311 / stds_E311).flatten(1, 2)


def _cropped(pictures: Tensor, area: float) -> Tensor:
    if area == 1.0:
        return pictures
    height, width = pictures.shape[-2:]
    rows, columns = (max(1, round(side * area**0.5)) for side in (height, width))
    top, left = (height - rows) // 2, (width - columns) // 2
    return pictures[..., top : top + rows, left : left + columns]
