"""A trainer's part in a change of the number of ranks.

Megatron has one set of process groups in a process, and its modules keep the groups that they were built
with. So a rank that stays gives up its groups, meets the others, builds everything anew, and takes what it
had itself from its own memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf_backend_megatron.body import Body, build_body
from rlinf_backend_megatron.ground import Ground
from rlinf_backend_megatron.layout import Layout
from rlinf_backend_megatron.optimizer import MOMENTS
from rlinf_backend_megatron.spread import Part, Place, Spread
from rlinf_backend_megatron.world import join_world
from rlinf_core.api import Block, Held, OptimizerConfig, Resize, TrainerContext
from rlinf_core.errors import ConfigError, RlinfError

if TYPE_CHECKING:
    from rlinf_backend_megatron.trainer import MegatronTrainer

COPY, MARK = "copy.", "reference."  # before names of what the reference has


@dataclass(frozen=True)
class Facts:
    """What ranks know beside tensors."""

    version: int
    steps_taken: int
    skipped_steps: int
    optimizer: OptimizerConfig
    total_steps: int
    marked: bool  # a later policy is the reference
    order: tuple[str, ...]  # of the parameters of a layer


class Rebuild(Resize):
    """Networks and optimizer are made anew among the new ranks; `trainer` is None on a rank that joins."""

    def __init__(
        self, ground: Ground, context: TrainerContext, facts: Facts, trainer: MegatronTrainer | None
    ) -> None:
        self._ground = ground
        self._context = context
        self._facts = facts
        self._trainer = trainer
        self._layout = ground.layout(context.world_size)
        self._spread = ground.spread(facts.order)
        if trainer is not None:
            _check_present(self._spread, facts, trainer)
        self.blocks = tuple(expected(self._spread, self._layout, context.rank, facts, copied=self._copied))
        self._body: Body | None = None

    @property
    def _copied(self) -> bool:
        return self._ground.keep_reference and not self._ground.source.lora.rank

    def allocate(self) -> None:
        """Nothing can be built before the former process groups are gone."""

    def enter(self) -> Held:
        """Leave the former ranks, meet the new ones, and build."""
        if self._trainer is not None:
            self._trainer.leave()
        world = join_world(self._context, self._layout)
        facts = self._facts
        body = self._body = build_body(self._ground, world, facts.optimizer, facts.total_steps, filled=False)
        body.reference.make_room(marked=facts.marked)
        found = held(self._spread, body)
        if set(found) != set(self.blocks):
            odd = next(iter(set(found) ^ set(self.blocks)))
            raise RlinfError(f"backend megatron: {odd} is not where rank {world.rank} was to have it")
        return found

    def finish(self, facts: Mapping[str, Any]) -> MegatronTrainer:
        """The former trainer with a new body, or a new one."""
        from rlinf_backend_megatron.trainer import MegatronTrainer

        if self._body is None:
            raise RuntimeError("finish before enter")
        known, body = Facts(**facts), self._body
        body.optimizer.go_on(known.steps_taken, known.skipped_steps)
        trainer = self._trainer
        if trainer is None:
            trainer = MegatronTrainer(self._ground, body)
        else:
            trainer.become(body)
        trainer.version = known.version
        return trainer


def expected(spread: Spread, layout: Layout, rank: int, facts: Facts, *, copied: bool) -> Iterator[Block]:
    """What a rank of a layout will have."""
    place = Place(rank, layout)
    parts = spread.parts(place)
    ranges = spread.ranges(parts, place)
    for part in parts:
        prefixes = ["model.", COPY] if copied else ["model."]
        if facts.marked and not copied and part.trained:
            prefixes.append(MARK)
        yield from (block for prefix in prefixes for block, _ in _whole(prefix, part, None))
        begin, end = ranges.get(part.local, (0, 0))
        kinds = [*MOMENTS, "main"] if part.dtype != torch.float32 else MOMENTS
        yield from (block for kind in kinds for block, _ in _flat(kind, part, begin, end, None))


def held(spread: Spread, body: Body) -> dict[Block, Tensor]:
    """Where this rank has it."""
    named = dict(body.network.named_parameters())
    copied = {} if body.reference.copy is None else dict(body.reference.copy.named_parameters())
    sources = {"model.": named, COPY: copied, MARK: body.reference.held()}
    parts = {part.local: part for part in spread.parts(Place(body.world.rank, body.world.layout))}
    found: dict[Block, Tensor] = {}
    for prefix, tensors in sources.items():
        for name, tensor in tensors.items():
            found |= dict(_whole(prefix, parts[name], tensor.detach()))
    names = {parameter: name for name, parameter in named.items()}
    for kept in body.optimizer.kept():
        part, main = parts[names[kept.parameter]], kept.main.detach()
        begin, end = kept.begin, kept.begin + main.numel()
        tensors = kept.moments if main.dtype == part.dtype else {**kept.moments, "main": main}
        for kind, tensor in tensors.items():
            found |= dict(_flat(kind, part, begin, end, tensor))
    return found


def _whole(prefix: str, part: Part, tensor: Tensor | None) -> Iterator[tuple[Block, Tensor]]:
    return _boxes(prefix + part.name, part.dtype, part, 0, part.entries, tensor)


def _flat(
    kind: str, part: Part, begin: int, end: int, tensor: Tensor | None
) -> Iterator[tuple[Block, Tensor]]:
    return _boxes(f"optimizer.{kind}.{part.name}", torch.float32, part, begin, end, tensor)


def _boxes(
    name: str, dtype: torch.dtype, part: Part, begin: int, end: int, tensor: Tensor | None
) -> Iterator[tuple[Block, Tensor]]:
    """Blocks of entries of a parameter, with where these lie in a tensor of those entries; on no device
    without one."""
    if tensor is None:
        tensor = torch.empty(end - begin, dtype=dtype, device="meta")
    flat = tensor.view(-1)
    kind = str(dtype).removeprefix("torch.")
    for box in part.boxes(begin, end):
        count = torch.Size(box.inner).numel()
        inside = flat[box.start - begin : box.start - begin + count].view(box.inner)
        block = Block(name, kind, dtype.itemsize, part.shape, box.offsets, box.sizes)
        yield block, inside[tuple(slice(0, size) for size in box.sizes)]


def _check_present(spread: Spread, facts: Facts, trainer: MegatronTrainer) -> None:
    """Raises `ConfigError` if this release of Megatron lays out what it has otherwise than is expected."""
    body = trainer.body
    copied = body.reference.copy is not None
    blocks = set(expected(spread, body.world.layout, body.world.rank, facts, copied=copied))
    odd = blocks ^ set(held(spread, body))
    if odd:
        raise ConfigError(
            "backend megatron: the number of ranks cannot change: this release of Megatron-Core does not lay "
            f"out the optimizer's state as is known of 0.16 ({next(iter(odd)).name}); end the run and go on "
            "with other ranks by rlinf train --resume"
        )
