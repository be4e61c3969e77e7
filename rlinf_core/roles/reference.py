"""The reference role: log-probabilities of the initial policy, for KL terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from rlinf_core.roles.estimates import LOGPROBS
from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.actor import ActorWorker


class ReferenceWorker(Worker):
    """One rank; asks the trainer in its process for its frozen initial policy."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.config = config

    @stage
    def logprobs(self, chunks: Iterator[list[Experience]]) -> Iterator[list[Experience]]:
        """Fill `reference_logprobs` of this rank's share of each chunk and yield it, if this rank speaks for
        the share. Every rank gets every chunk."""
        name = f"actor[{self.context.rank}]"
        actor = cast("ActorWorker", self.context.peers[name])
        with self.beside(name):
            for rows in chunks:
                for part in actor.updater.shares(rows, range(len(rows))):
                    chosen = [rows[i] for i in part or [0]]  # an empty part joins the collectives
                    computed_BT = actor.estimate(chosen, LOGPROBS, reference=True).logprobs_BT.numpy()
                    for i, logprobs_T in zip(part, computed_BT, strict=False):
                        rows[i].reference_logprobs = logprobs_T[: len(rows[i].mask)]
                    yield [rows[i] for i in part] if actor.updater.share.speaks else []
