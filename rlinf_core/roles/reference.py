"""The reference role: log-probabilities of the initial policy, for KL terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from rlinf_core.roles.estimates import LOGPROBS
from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.actor import ActorWorker
    from rlinf_core.roles.update import Updater


class ReferenceWorker(Worker):
    """One rank; asks the trainer in its process for its frozen initial policy."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.config = config

    @stage
    def logprobs(
        self, chunks: Iterator[list[Experience]], *, shared: bool = False
    ) -> Iterator[list[Experience]]:
        """Fill `reference_logprobs` of this rank's share of each chunk and yield it, if this rank speaks for
        the share. Every rank gets every chunk, or, where they are `shared`, those it asks for."""
        name = next(each for each in self.context.peers if each.startswith("actor["))
        actor = cast("ActorWorker", self.context.peers[name])
        updater = actor.updater.alone() if shared else actor.updater
        with self.beside(name):
            if shared:
                yield []
            for rows in chunks:
                parts = compared(updater, rows)
                if shared:
                    yield [row for part in parts for row in part]
                else:
                    yield from (part if updater.share.speaks else [] for part in parts)


def compared(updater: Updater, rows: Sequence[Experience]) -> Iterator[list[Experience]]:
    """The updater's share of the rows, micro-batch by micro-batch, with `reference_logprobs`."""
    for part in updater.shares(rows, range(len(rows))):
        chosen = [rows[i] for i in part or [0]]  # an empty part joins the collectives
        computed_BT = updater.estimate(chosen, LOGPROBS, reference=True).logprobs_BT.numpy()
        for i, logprobs_T in zip(part, computed_BT, strict=False):
            rows[i].reference_logprobs = logprobs_T[: len(rows[i].mask)]
        yield [rows[i] for i in part]
