"""In what precision losses and advantages are computed, and how far a log-ratio may go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Beyond this size a log-ratio is held constant: float32 exp overflows at 88.
LOG_RATIO_LIMIT = 20.0
_WIDE = (torch.float32, torch.float64)


def at_least_float32(values: Tensor) -> Tensor:
    """The same numbers in float32, or in float64 if they came so."""
    return values if values.dtype in _WIDE else values.float()


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """`exp(log_ratio)`, constant beyond the limit on either side, so that it stays finite."""
    return at_least_float32(log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
