"""A trainer's part in a change of the number of ranks.

Megatron has one set of process groups in a process, and its modules keep the groups that they were built
with. So a rank that stays gives up its groups, meets the others, builds everything anew, and takes what it
had itself from its own memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf_backend_megatron.body import Body, build_body
from rlinf_backend_megatron.ground import Ground
from rlinf_backend_megatron.holdings import HeldBoxes, expected, holdings
from rlinf_backend_megatron.spread import Spread
from rlinf_backend_megatron.world import join_world
from rlinf_core.api import Held, OptimizerConfig, Resize, TrainerContext
from rlinf_core.errors import ConfigError, RlinfError

if TYPE_CHECKING:
    from rlinf_backend_megatron.trainer import MegatronTrainer


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
        copied = ground.keep_reference and not ground.source.lora.rank
        self.blocks = tuple(
            expected(self._spread, self._layout, context.rank, copied=copied, marked=facts.marked)
        )
        self._body: Body | None = None

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
        found = HeldBoxes(holdings(self._spread, body))
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


def _check_present(spread: Spread, facts: Facts, trainer: MegatronTrainer) -> None:
    """Raises `ConfigError` if this release of Megatron lays out what it has otherwise than is expected."""
    body = trainer.body
    copied = body.reference.copy is not None
    layout, rank = body.world.layout, body.world.rank
    blocks = set(expected(spread, layout, rank, copied=copied, marked=facts.marked))
    odd = blocks ^ set(trainer.held())
    if odd:
        raise ConfigError(
            "backend megatron: the number of ranks cannot change: this release of Megatron-Core does not lay "
            f"out the optimizer's state as is known of 0.16 ({next(iter(odd)).name}); end the run and go on "
            "with other ranks by rlinf train --resume"
        )
