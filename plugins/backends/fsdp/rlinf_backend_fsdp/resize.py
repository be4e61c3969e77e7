"""A trainer's part in a change of the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rlinf_backend_fsdp.checkpoint import targets
from rlinf_backend_fsdp.ground import ALIGNED, Body, Ground, Room, filled, local, materialise, shard_rows
from rlinf_backend_fsdp.leaves import Leaves
from rlinf_backend_fsdp.optimizer import Optimizer
from rlinf_backend_fsdp.policy import PolicyModule, shard, wants_sharding
from rlinf_backend_fsdp.reference import Reference
from rlinf_backend_fsdp.world import World, join_world
from rlinf_core.api import Block, Held, OptimizerConfig, Resize, TrainerContext
from rlinf_core.errors import RlinfError
from rlinf_core.shards import Shard

if TYPE_CHECKING:
    from rlinf_backend_fsdp.trainer import FSDPTrainer

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Facts:
    """What ranks know beside tensors."""

    version: int
    steps_taken: int
    skipped_steps: int
    optimizer: OptimizerConfig
    total_steps: int
    marked: bool  # a later policy is the reference


def held(body: Body, known: Sequence[Block]) -> dict[Block, Tensor]:
    """This rank's part of every tensor. Training stands still while this is asked for, and to find out where
    each lies in the whole takes long: `known` has been found before, and holds while names are the same."""
    parts = local_state(body)
    if {each.name for each in known} != parts.keys():
        known = [_block_of(each) for each in targets(whole_state(body))]
    return {each: parts[each.name] for each in known}


class Stay(Resize):
    """Parameters are whole before and after: nothing of this rank moves."""

    def __init__(self, trainer: FSDPTrainer, context: TrainerContext) -> None:
        self._trainer = trainer
        self._context = context
        self.blocks = tuple(trainer.held())

    def allocate(self) -> None:
        """Nothing is needed."""

    def enter(self) -> Held:
        """Meet the new ranks."""
        self._trainer.leave()
        self._world = join_world(self._context)
        return self._trainer.held()

    def finish(self, facts: Mapping[str, Any]) -> FSDPTrainer:
        """The same trainer among others."""
        trainer = self._trainer
        trainer.world = trainer._leaves.world = self._world
        return trainer


class Rebuild(Resize):
    """Modules, leaves and optimizer are made anew for the new layout; `trainer` is None on a rank that
    joins."""

    def __init__(
        self, ground: Ground, context: TrainerContext, facts: Facts, trainer: FSDPTrainer | None
    ) -> None:
        self._ground = ground
        self._context = context
        self._facts = facts
        self._trainer = trainer
        self._policy = ground.blueprint.policy()
        self._copy = None if ground.reference is None else ground.reference.policy()
        self._sharded = wants_sharding(self._policy, ground.config, context.world_size)
        self.blocks = tuple(self._expected())
        self._body: Body | None = None

    def allocate(self) -> None:
        """Memory for everything; where parameters are whole all is built in it."""
        device = torch.device(self._context.device)
        kept = [each for each in self.blocks if self._sharded or not each.name.startswith("model.")]
        used = [self._stored_bytes(each) for each in kept]
        self._room = Room(sum(used) + ALIGNED * len(used), device)
        if not self._sharded:
            self._build(World(self._context.rank, self._context.world_size, device))
            for parameter in self._policy.parameters():
                parameter.detach().zero_()  # trained ones were touched when they were joined

    def enter(self) -> Held:
        """Meet the new ranks; sharded parameters are made now, as they need a process group."""
        if self._trainer is not None:
            self._trainer.leave()
        world = join_world(self._context)
        if self._body is None:
            self._build(world)
        body = self._made()
        body.world = body.leaves.world = world
        found = held(body, self.blocks)
        odd = found.keys() ^ set(self.blocks) or {b for b, part in found.items() if b.sizes != part.shape}
        if odd:
            raise RlinfError(f"backend fsdp: {odd.pop()} is not what a rank of {world.size} has")
        return found

    def finish(self, facts: Mapping[str, Any]) -> FSDPTrainer:
        """The former trainer with a new body, or a new one."""
        from rlinf_backend_fsdp.trainer import FSDPTrainer

        known, body = Facts(**facts), self._made()
        body.optimizer.after_load(known.steps_taken, known.skipped_steps)
        trainer = self._trainer
        if trainer is None:
            trainer = FSDPTrainer(self._ground, body)
        else:
            trainer.become(body)
        trainer.version = known.version
        return trainer

    def _made(self) -> Body:
        if self._body is None:
            raise RuntimeError("finish before enter")
        return self._body

    def _build(self, world: World) -> None:
        for policy in (self._policy, self._copy):
            if policy is not None:
                if self._sharded:
                    shard(policy, self._ground.model, self._ground.config, world)
                kept = self._sharded or policy is self._copy
                empty = partial(torch.empty_like, device=world.device)
                materialise(policy, world.device, self._room.like if kept else empty)
        leaves = Leaves(self._policy.named(), world)
        optimizer = Optimizer(self._facts.optimizer, self._facts.total_steps, leaves, self._room.like)
        reference = Reference(self._policy, self._copy, adapters=self._ground.lora.rank > 0)
        if self._facts.marked:
            reference.marked = {n: filled(t, self._room.like) for n, t in leaves.parameters().items()}
        self._body = Body(world, self._policy, reference, self._sharded, leaves, optimizer)

    def _stored_bytes(self, block: Block) -> int:
        """With the rows that FSDP gives to every rank."""
        if not self._sharded or not block.shape:
            return block.nbytes
        rows = shard_rows(block.shape[0], self._context.world_size)
        return rows * math.prod(block.sizes[1:]) * block.itemsize

    def _expected(self) -> Iterator[Block]:
        """By arithmetic, before there is a process group."""
        marked = "reference" if self._facts.marked else None
        for name, parameter in self._policy.named():
            yield self._block(f"model.{name}", parameter)
            if parameter.requires_grad:
                for kind in MOMENTS:
                    yield self._block(f"optimizer.{kind}.{name}", parameter)
                if marked:
                    yield self._block(f"{marked}.{name}", parameter)
        yield Block("optimizer.step", "float32", 4, (), (), ())
        if self._copy is not None:
            for name, parameter in self._copy.named():
                yield self._block(f"copy.{name}", parameter)

    def _block(self, name: str, like: Tensor) -> Block:
        shape = tuple(like.shape)
        offsets, sizes = (0,) * len(shape), shape
        if self._sharded:
            chunk = shard_rows(shape[0], self._context.world_size)
            begin = min(shape[0], chunk * self._context.rank)
            offsets = (begin, *offsets[1:])
            sizes = (min(shape[0], begin + chunk) - begin, *shape[1:])
        return Block(name, _dtype(like), like.element_size(), shape, offsets, sizes)


def whole_state(body: Body) -> dict[str, Tensor]:
    """Every tensor that a rank cannot make by itself."""
    return _state(body, body.optimizer.state(), Tensor.detach)


def local_state(body: Body) -> dict[str, Tensor]:
    """This rank's part of `whole_state`."""
    with torch.no_grad():
        return _state(body, body.optimizer.parts(), local)


def _state(
    body: Body, optimizer: Mapping[str, Tensor], seen: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    _reshard(body)
    state = {f"model.{name}": seen(parameter) for name, parameter in body.policy.named()}
    state |= {f"optimizer.{name}": tensor for name, tensor in optimizer.items()}
    state |= {f"reference.{name}": seen(tensor) for name, tensor in body.reference.marked.items()}
    frozen: PolicyModule | None = body.reference.copy
    if frozen is not None:
        state |= {f"copy.{name}": seen(parameter) for name, parameter in frozen.named()}
    return state


def _reshard(body: Body) -> None:
    for policy in (body.policy, body.reference.copy):
        for part in policy.modules() if policy is not None else ():
            if isinstance(part, FSDPModule):
                part.reshard()  # a forward pass without a backward pass leaves them gathered


def _block_of(shard: Shard) -> Block:
    data = shard.data
    return Block(shard.name, _dtype(data), data.element_size(), shard.shape, shard.offsets, tuple(data.shape))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
