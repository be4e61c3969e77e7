"""The rollout role: a generation engine beside the trainer whose weights it uses."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, cast

from rlinf_core.roles.setup import build, build_model
from rlinf_core.types import Request, Sample, Sampling
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.api import RolloutEngine
    from rlinf_core.config.schema import Component, RunConfig
    from rlinf_core.roles.actor import ActorWorker


class RolloutWorker(Worker):
    """One rank of text generation."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.engine: RolloutEngine = build(
            cast("Component", config.rollout),
            build_model(config),
            config.lora,
            device=context.device,
            seed=config.seed,
        )
        self._base_loaded = False

    def sync(self) -> int:
        """Take the current weights of the actor rank in this process; returns their version."""
        actor = cast("ActorWorker", self.context.peers[f"actor[{self.context.rank}]"])
        if self.engine.version != actor.trainer.version or not self._base_loaded:
            self.engine.load_weights(actor.trainer.weights(trainable_only=self._base_loaded))
            self._base_loaded = True
        return self.engine.version

    @stage
    def generate(
        self, chunks: Iterator[list[Request]], *, sampling: Sampling
    ) -> Generator[list[Sample], None, float]:
        """Finished samples as they finish; returns the seconds spent generating."""
        began = time.perf_counter()
        yield from self.engine.generate(chunks, sampling)
        return time.perf_counter() - began
