"""Checkpoints: each rank writes boxes of tensors that no other rank writes, and any layout reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlinf_backend_megatron.holdings import COPY, MARK, MODEL, Holding, holdings
from rlinf_backend_megatron.spread import Place
from rlinf_core.shards import Shard, keys, read

if TYPE_CHECKING:
    from rlinf_backend_megatron.trainer import MegatronTrainer

NAME = "megatron"
NUMBERS = "numbers"  # version, steps taken, steps skipped


def written(trainer: MegatronTrainer) -> list[Shard]:
    """What this rank writes: of what is trained, a marked reference, counters and its random state."""
    world = trainer.world
    place = Place(world.rank, world.layout)
    found = [
        _shard(holding)
        for number, holding in enumerate(_kept(trainer))
        if _writes(holding, place, number, distributed=trainer.ground.config.distributed_optimizer)
    ]
    found += [_whole(name, state) for name, state in _random(trainer).items()]
    if world.rank == 0:
        optimizer = trainer.optimizer
        numbers = (trainer.version, optimizer.steps_taken, optimizer.skipped_steps)
        found.append(_whole(NUMBERS, torch.tensor(numbers)))
    return sorted(found, key=lambda shard: shard.key)


def load(trainer: MegatronTrainer, path: Path) -> None:
    """Restore what was written. A rank that did not exist then keeps its random state. Raises
    `CheckpointError`."""
    stored = keys(path, NAME)
    if any(name.startswith(MARK) for name in stored):
        trainer.mark_reference()
    numbers = torch.zeros(3, dtype=torch.int64)
    random = {name: state for name, state in _random(trainer).items() if name in stored}
    state = [_whole(name, tensor) for name, tensor in {NUMBERS: numbers, **random}.items()]
    read([*map(_shard, _kept(trainer)), *state], path, NAME)
    version, taken, skipped = numbers.tolist()
    trainer.version = version
    trainer.optimizer.go_on(taken, skipped)
    for name, tensor in random.items():
        if name == f"random.{trainer.world.rank}":
            torch.set_rng_state(tensor)
        else:
            torch.cuda.set_rng_state(tensor, trainer.world.device)


def _kept(trainer: MegatronTrainer) -> Iterator[Holding]:
    """All else comes from the model."""
    for holding in holdings(trainer.spread(), trainer.body):
        marked = holding.kind in (COPY, MARK) and trainer.reference.marked
        if marked or (holding.kind not in (COPY, MARK) and holding.part.trained):
            yield holding


def _writes(holding: Holding, place: Place, number: int, *, distributed: bool) -> bool:
    """Of ranks that have the same, one does; which one, goes by turns."""
    part = holding.part
    if part.again or (not part.expert and part.sizes == part.shape and place.tensor):
        return False
    if holding.kind not in (MODEL, COPY, MARK) and distributed:
        return True
    owner, owners = place.owner(experts=part.expert)
    return number % owners == owner


def _shard(holding: Holding) -> Shard:
    kind = MARK if holding.kind == COPY else holding.kind
    block = holding.block
    return Shard(kind + holding.part.name, holding.tensor, block.offsets, block.shape)


def _whole(name: str, tensor: Tensor) -> Shard:
    return Shard(name, tensor, (0,) * tensor.ndim, tuple(tensor.shape))


def _random(trainer: MegatronTrainer) -> Mapping[str, Tensor]:
    """The generators that this rank draws from."""
    rank, device = trainer.world.rank, trainer.world.device
    states = {f"random.{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"random_device.{rank}"] = torch.cuda.get_rng_state(device)
    return states
