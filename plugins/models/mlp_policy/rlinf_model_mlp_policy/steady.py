"""Layers that give a row the same bits whatever is computed beside it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

ROWS = 16  # of products of matrices: with so many, or a multiple, kernels treat every row alike
PICTURES = 4  # of convolutions


def steadily(layers: nn.Module, rows: Tensor, multiple: int = ROWS) -> Tensor:
    """The outputs of `rows`, computed with zeros behind them up to a multiple."""
    missing = -len(rows) % multiple
    if not missing:
        whole: Tensor = layers(rows)
        return whole
    padded: Tensor = layers(functional.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, missing)))
    return padded[: len(rows)]
