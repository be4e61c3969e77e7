"""What stands on a mask. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def kept(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values on the mask, and 0 off it whatever stands there; leading axes of values may be more.

    Where nothing is off the mask these are the values themselves, which spares small policies two operations
    and their gradients. Only the CPU is asked: elsewhere asking would wait for the device.
    """
    if mask_BT.device.type == "cpu" and bool(mask_BT.all()):
        return values_BT
    return torch.where(mask_BT, values_BT, 0.0)
