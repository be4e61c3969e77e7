"""Layers that give a row the same bits whatever is computed beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16  # of products of matrices: with so many, or a multiple, kernels treat every row alike
PICTURES = 4  # of convolutions


def steadily(layers: nn.Module, rows: Tensor, multiple: int = ROWS) -> Tensor:
    """The outputs of `rows`, computed with copies of the last one up to a multiple."""
    missing = -len(rows) % multiple
    whole = torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else rows
    outputs: Tensor = layers(whole)
    return outputs[: len(rows)]
