"""Rotary positions (Su et al. 2021) in three operations."""

from __future__ import annotations

import torch
from torch import Tensor


def signed_sine(sin: Tensor) -> Tensor:
    """Sines whose first half is negated: the sign that each dimension's partner enters with."""
    half = sin.shape[-1] // 2
    return torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


def rotate(states: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """`states` turned by their positions; dimension d is paired with d + D/2."""
    partner = states.roll(states.shape[-1] // 2, -1)
    return torch.addcmul(states * cos, partner, signed_sin)
