"""The tensors that the optimizer updates: plain, local to this rank, and as few as possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlinf_backend_fsdp.parts import Parts
from rlinf_backend_fsdp.world import World

EXACT = 1 << 16  # elements whose squares float32 sums to 1e-6; of 30 million it is off by 1e-3


@dataclass
class Slot:
    """Where a named parameter lies: elements from `start` on of leaf `leaf`."""

    name: str
    parameter: nn.Parameter
    leaf: int
    start: int


class Leaves:
    """Replicated parameters are joined into one flat leaf a dtype, with one flat gradient that each
    parameter's gradient is a view of: reduction, norm and update are one call each. Of sharded parameters
    the leaves are this rank's shards."""

    def __init__(self, named: Iterator[tuple[str, nn.Parameter]], world: World) -> None:
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.world = world
        self.sharded = any(isinstance(parameter, DTensor) for _, parameter in trained)
        self.leaves: list[Tensor] = []
        self.slots: list[Slot] = []
        self._parts: Parts | None = None  # from the first part on
        if self.sharded:
            for name, parameter in trained:
                self.slots.append(Slot(name, parameter, len(self.leaves), 0))
                self.leaves.append(_local(parameter.detach()).requires_grad_())
        else:
            for dtype in dict.fromkeys(parameter.dtype for _, parameter in trained):
                self._join([(n, p) for n, p in trained if p.dtype == dtype])

    def collect(self) -> list[Tensor]:
        """The gradients of the leaves, summed over ranks; they stay those of the leaves until `clear`."""
        if self.sharded:
            for slot in self.slots:
                grad, leaf = slot.parameter.grad, self.leaves[slot.leaf]
                leaf.grad = torch.zeros_like(leaf) if grad is None else _local(grad).to(leaf.dtype)
            return [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        if self._parts is not None and self._parts.closed:
            self._parts.collect(self._gradients(), self.world)
            return self._gradients()
        return [self.world.sum_(gradient) for gradient in self._gradients()]

    def close_part(self) -> None:
        """The gradients are those of one part of the step; `collect` adds up parts in any order. Not of
        sharded parameters."""
        if self._parts is None:
            self._parts = Parts(self._gradients())
        self._parts.close(self._gradients())

    def square_norm(self, gradients: list[Tensor]) -> Tensor:
        """The squared norm over all ranks, float64."""
        if len(gradients) == 1 and gradients[0].numel() <= EXACT and not self.sharded:
            norm: Tensor = torch.linalg.vector_norm(gradients[0])
            return norm.double().square()
        parts = [part for gradient in gradients for part in gradient.flatten().split(EXACT)]
        norms = torch.stack(torch._foreach_norm(parts)) if parts else torch.zeros(1)
        squared = norms.double().square().sum()
        return self.world.sum_(squared) if self.sharded else squared

    def clear(self) -> None:
        """Forget the gradients."""
        if self._parts is not None and self._parts.closed:
            self._parts.forget()
        if self.sharded:
            for slot in self.slots:
                slot.parameter.grad = None
                self.leaves[slot.leaf].grad = None
        else:
            torch._foreach_zero_(self._gradients())

    def parts(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """This rank's part of leaf-shaped tensors under parameter names, as views."""
        return {
            slot.name: tensors[slot.leaf]
            if self.sharded
            else _view(tensors[slot.leaf], slot.start, slot.parameter)
            for slot in self.slots
        }

    def by_name(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """The same, distributed as the parameters are."""
        parts = self.parts(tensors)
        return {slot.name: distributed(parts[slot.name], slot.parameter) for slot in self.slots}

    def parameters(self) -> Mapping[str, Tensor]:
        """The trained parameters by name."""
        return {slot.name: slot.parameter.detach() for slot in self.slots}

    def gradients(self) -> list[Tensor]:
        """The tensors that gradients are in now."""
        if not self.sharded:
            return [*self._gradients(), *(self._parts.tensors() if self._parts is not None else [])]
        return [slot.parameter.grad for slot in self.slots if slot.parameter.grad is not None]

    def _gradients(self) -> list[Tensor]:
        return [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def _join(self, named: list[tuple[str, nn.Parameter]]) -> None:
        flat = torch.cat([parameter.detach().flatten() for _, parameter in named]).requires_grad_()
        flat.grad = torch.zeros_like(flat)
        start = 0
        for name, parameter in named:
            self.slots.append(Slot(name, parameter, len(self.leaves), start))
            parameter.data = _view(flat.detach(), start, parameter)
            parameter.grad = _view(flat.grad, start, parameter)
            start += parameter.numel()
        self.leaves.append(flat)


def distributed(part: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that is distributed as `like` is; itself where that is not."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _view(flat: Tensor, start: int, like: Tensor) -> Tensor:
    return flat[start : start + like.numel()].view(like.shape)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
