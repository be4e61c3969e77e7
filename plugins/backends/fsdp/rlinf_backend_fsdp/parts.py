"""Gradients of parts of a step, added up to the same bits in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlinf_backend_fsdp.world import World
from rlinf_core.errors import ModelError

LARGE = 2.0**8  # from here on float32 has no finer steps than 2^-15
BLOCK = 1 << 15
FINE, COARSE = 2.0**44, 2.0**16  # of smaller elements and of large ones: steps of the whole numbers in 1
MOST_FINE, MOST_COARSE = 2.0**18, 2.0**46  # that an element may add up to: what int64 holds, halved


class Parts:
    """Sums of gradients as whole numbers. Those have one sum, floats one for each order.

    Large elements are multiples of the coarse step and exact; others are rounded to 2^-44, far below what
    counts in a gradient that is summed over the decisions of a step. Room for large ones is made when
    there is one.
    """

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.totals = [_room(gradient) for gradient in gradients]
        self.large: list[Tensor] = []
        self.closed = 0
        self._peaks = [0.0, 0.0]  # that no small and no large element is above; not finite where one is not

    def close(self, gradients: Sequence[Tensor]) -> None:
        """Take a part's gradients, which become zero."""
        self.closed += 1
        ends = [float(end) for gradient in gradients if gradient.numel() for end in torch.aminmax(gradient)]
        peak = math.nan if any(map(math.isnan, ends)) else max(map(abs, ends), default=0.0)
        self._peaks[0] += min(peak, LARGE)
        if not peak < LARGE:
            self._peaks[1] += peak
        if self._peaks[0] < MOST_FINE and self._peaks[1] < MOST_COARSE:
            self._add(gradients, split=peak >= LARGE)
        torch._foreach_zero_(list(gradients))

    def collect(self, gradients: Sequence[Tensor], world: World) -> None:
        """Give the sums over all parts of all ranks, and begin anew. Raises `ModelError` for more than the
        whole numbers hold; where a part was not finite, no sum is."""
        peaks = world.sum_(torch.tensor(self._peaks, dtype=torch.float64, device=world.device)).tolist()
        if math.isfinite(peaks[1]) and (peaks[0] >= MOST_FINE or peaks[1] >= MOST_COARSE):
            raise ModelError(
                "backend fsdp: elements of this step's gradients, which are summed over its decisions, may "
                f"add up to {peaks[0]:.3g} (small ones) and {peaks[1]:.3g}, and no more than {MOST_FINE:.3g} "
                f"and {MOST_COARSE:.3g} can be added up in any order; set schedule.dynamic=step, or a larger "
                "schedule.chunk"
            )
        if peaks[1] and not self.large:
            self.large = [_room(gradient) for gradient in gradients]
        for number, gradient in enumerate(gradients):
            exact = world.sum_(self.totals[number]).double().div_(FINE)
            if peaks[1]:
                exact += world.sum_(self.large[number]).double().div_(COARSE)
            gradient.copy_(exact)
            if not math.isfinite(peaks[1]):
                gradient.fill_(math.nan)
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        torch._foreach_zero_([*self.totals, *self.large])
        self.closed, self._peaks = 0, [0.0, 0.0]

    def tensors(self) -> list[Tensor]:
        """What the sums are in."""
        return [*self.totals, *self.large]

    def _add(self, gradients: Sequence[Tensor], *, split: bool) -> None:
        if split and not self.large:
            self.large = [_room(gradient) for gradient in gradients]
        sums = [self.totals, self.large] if split else [self.totals]
        for gradient, total, *large in zip(gradients, *sums, strict=True):
            blocks = [_blocks(tensor) for tensor in (gradient, total, *large)]
            for each, fine, *coarse in zip(*blocks, strict=True):
                exact = each.double()
                for room in coarse:
                    part = torch.where(exact.abs() >= LARGE, exact, 0.0)
                    exact -= part
                    room += part.mul_(COARSE).round_().to(torch.int64)
                fine += exact.mul_(FINE).round_().to(torch.int64)


def _blocks(tensor: Tensor) -> Sequence[Tensor]:
    """Pieces that stay in a processor's cache while they are worked on."""
    return tensor.flatten().split(BLOCK) if tensor.device.type == "cpu" else [tensor]


def _room(gradient: Tensor) -> Tensor:
    return torch.zeros_like(gradient, dtype=torch.int64)
