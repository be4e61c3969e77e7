"""Writes the trained policy in the model's own format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlinf_core.adapters import export_adapted

if TYPE_CHECKING:
    from rlinf_backend_fsdp.trainer import FSDPTrainer


def export_policy(trainer: FSDPTrainer, path: Path) -> None:
    """Gather tensor by tensor on every rank; rank 0 writes. Raises `OSError`."""
    state = _full_state(trainer.policy.inner)
    if trainer.world.rank != 0:
        for _ in state:
            continue
    elif trainer.lora.rank:
        export_adapted(trainer.model, trainer.lora, trainer.seed, dict(state), path)
    else:
        trainer.model.export(state, path)
    trainer.all_sum([0.0])


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or gathered from all ranks if it is sharded."""
    if isinstance(tensor, DTensor):
        sharded: Any = tensor.detach()  # Any: torch types the detached as an ordinary tensor
        gathered: Tensor = sharded.full_tensor()
        return gathered
    return tensor


def _full_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in module.state_dict().items():
        yield name, whole(tensor)
