"""The critic: a model of its own that learns what states are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_core.roles.estimates import VALUES
from rlinf_core.roles.trained import TrainedWorker
from rlinf_core.types import Experience
from rlinf_core.worker import WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.setup import Spaces


class CriticWorker(TrainedWorker):
    """One rank. It computes the same advantages as the actor, from the same rows, for their returns."""

    def __init__(
        self,
        context: WorkerContext,
        config: RunConfig,
        *,
        spaces: Spaces | None = None,
        joins: Mapping[str, Any] | None = None,  # Any: as `TrainedWorker` has it
    ) -> None:
        super().__init__(context, config, critic=True, spaces=spaces, joins=joins)

    @stage
    def values(self, chunks: Iterator[list[Experience]]) -> Iterator[list[Experience]]:
        """Fill `values` and `final_value` of this rank's share of each chunk and yield it, if this rank
        speaks for the share. Every rank gets every chunk."""
        for rows in chunks:
            for part in self.updater.shares(rows, range(len(rows))):
                found = self.updater.estimate([rows[i] for i in part or [0]], VALUES)
                for i, position in enumerate(part):
                    row = rows[position]
                    row.values = found.values_BT[i, : len(row.mask)].numpy()
                    row.final_value = float(found.final_values_B[i])
                yield [rows[i] for i in part] if self.updater.share.speaks else []
