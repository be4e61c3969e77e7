"""The reference role: log-probabilities of the initial policy, for KL terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from rlinf_core.roles.batching import rank_micro_batches, row_tokens
from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.actor import ActorWorker


class ReferenceWorker(Worker):
    """One rank; asks the trainer in its process for its frozen initial policy."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.budget = config.train.micro_batch_tokens

    @stage
    def logprobs(self, chunks: Iterator[list[Experience]]) -> Iterator[list[Experience]]:
        """Take all rows of the step, fill `reference_logprobs` of this rank's share and yield it."""
        actor = cast("ActorWorker", self.context.peers[f"actor[{self.context.rank}]"])
        rows = [row for chunk in chunks for row in chunk]
        if not rows:
            return
        weights = [row_tokens(row) for row in rows]
        planned = rank_micro_batches(range(len(rows)), weights, self.context.world_size, self.budget)
        for part in planned[self.context.rank]:
            computed_BT = actor.logprobs(rows, part, reference=True).numpy()
            for i, logprobs_T in zip(part, computed_BT, strict=True):
                rows[i].reference_logprobs = logprobs_T[: len(rows[i].mask)]
            yield [rows[i] for i in part]
