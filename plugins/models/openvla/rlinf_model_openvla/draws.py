"""Draws from uniform numbers, each row's from its own. Axes: V bins; `...` any leading axes."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_transform(logits_V: Tensor, draws: Tensor) -> Tensor:
    """Bins `[...]` for logits `[..., V]`: the first whose cumulative probability is more than the draw."""
    cumulative_V = torch.softmax(logits_V.double(), dim=-1).cumsum(-1)
    wanted_1 = draws[..., None] * cumulative_V[..., -1:]
    chosen = torch.searchsorted(cumulative_V, wanted_1, right=True).squeeze(-1)
    return chosen.clamp(max=logits_V.shape[-1] - 1)


def laplace(draws: Tensor) -> Tensor:
    """Numbers of the density `exp(-|x|) / 2`."""
    return (draws - 0.5).sign() * -torch.log1p(-2.0 * (draws - 0.5).abs())
