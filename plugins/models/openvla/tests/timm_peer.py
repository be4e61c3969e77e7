"""Writes the features that timm's own encoders give for the weights of `test_openvla_vision.py`.

timm needs torchvision, whose wheel does not go with a CPU-only torch, so the numbers are kept in the test. To
make them again: `pip install timm torchvision` beside torch, in an environment of its own, and run this file.
"""

from __future__ import annotations

from typing import Any

import torch

SIZES = {
    "vit_large_patch14_reg4_dinov2": {"depth": 3, "embed_dim": 32, "num_heads": 4},
    "vit_so400m_patch14_siglip_224": {"depth": 3, "embed_dim": 48, "num_heads": 4},
}
PIXELS = torch.cos(torch.arange(2 * 3 * 56 * 56, dtype=torch.float32) * 0.011).view(2, 3, 56, 56)


@torch.no_grad()
def fill(weights: dict[str, torch.Tensor]) -> None:
    """Waves of different lengths, under the names of openvla-7b."""
    for i, (_, weight) in enumerate(sorted(weights.items())):
        steps = torch.arange(weight.numel(), dtype=torch.float32)
        weight.copy_((torch.sin(steps * (0.37 + 0.01 * i)) * 0.3).view(weight.shape))


def numbers(features: torch.Tensor) -> list[float]:
    """Three of the features, and the mean of their squares."""
    picked = [features[0, 0, 0], features[1, 7, 11], features[1, 15, 31], features.double().square().mean()]
    return [round(float(value), 6) for value in picked]


def main() -> None:
    """Print a line an encoder."""
    import timm

    for name, sizes in SIZES.items():
        model: Any = timm.create_model(name, pretrained=False, num_classes=0, img_size=56, **sizes)
        fill({key.replace("gamma", "scale_factor"): value for key, value in model.state_dict().items()})
        with torch.no_grad():
            found = model.get_intermediate_layers(PIXELS, n={len(model.blocks) - 2})[0]
        print(name, numbers(found), len(model.state_dict()))


if __name__ == "__main__":
    main()
