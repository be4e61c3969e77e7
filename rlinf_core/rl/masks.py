"""What stands on a mask. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def kept(values_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """The values on the mask, and 0 off it whatever stands there; leading axes of values may be more.

    No mask means that nothing is off it, which spares small policies an operation and its gradient.
    """
    return values_BT if mask_BT is None else torch.where(mask_BT, values_BT, 0.0)
