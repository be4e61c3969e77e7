"""Losses and gradients that are not finite: no rank takes their step, and too many of them end the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlinf_core.errors import TrainingError
from rlinf_core.roles.batch_file import array_bytes, write_batch
from rlinf_core.roles.promises import expect_loss
from rlinf_core.types import OWN

if TYPE_CHECKING:
    from rlinf_core.api import LossFunction, LossTerms, PolicyOutputs, StepStats, TrainBatch
    from rlinf_core.roles.update import Updater
    from rlinf_core.types import Experience

FOLDER = "not-finite"  # of a run
MOST_WRITTEN = 8  # batches that one process writes
MOST_BYTES = 256 << 20  # of rows that are kept until their optimizer step


class Guard:
    """Stands between the training of one model and its trainer.

    `take` the rows, add the gradients of losses that are `watched`, then `step`: a loss that is not finite
    makes its whole gradient so, which every rank sees in the norm, and no rank takes the step.
    """

    def __init__(self, updater: Updater) -> None:
        self.skipped = 0  # since `begin`
        self.in_a_row = 0
        self._updater = updater
        self._limit = updater.config.train.max_skipped_updates
        self._whose = "critic" if updater.critic else updater.name
        self._folder = Path(updater.config.output) / FOLDER if updater.config.output else None
        self._written = 0
        self._name = ""
        self._start()

    def begin(self, name: str, *, shared: bool = False) -> None:
        """Rows from here on belong to this part of the run, such as `step_7`; they are numbered from 0. With
        `shared` each rank has rows of its own. No effect when it has begun."""
        if name != self._name:
            self._name = name
            self._start(shared=shared)

    def take(self, rows: Sequence[Experience]) -> int:
        """Keep rows until they are trained, as far as there is room; returns the number of the first. Raises
        `TrainingError` for rows that were generated with log-probabilities that are not finite: without a
        gradient, which equal rewards do not give, nobody else would notice."""
        first = self._count
        self._count += len(rows)
        if self._keeps and len(self._rows) == first:
            size = array_bytes(rows)
            if self._bytes + size <= MOST_BYTES:
                self._rows += rows
                self._bytes += size
        broken = [first + i for i, row in enumerate(rows) if not np.isfinite(row.logprobs[row.mask]).all()]
        if broken:
            place = self._write({"rows_with_such_logprobs": broken})
            raise TrainingError(
                f"{self._name}: log-probabilities of {_places(broken)} were not finite when generated, "
                f"by weights of version {rows[broken[0] - first].weight_version}; {self._advice(place)}"
            )
        return first

    def watched(self, loss: LossFunction, parts: deque[list[int]]) -> LossFunction:
        """The loss of micro-batches, whose rows stand in `parts` in the same order."""

        def watching(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
            terms = loss(outputs, batch)
            expect_loss(self._updater.algorithm, terms)
            part = parts.popleft() if parts else []
            if not math.isfinite(float(terms.total.detach())):
                self._blamed.update(part)
                terms.total = terms.total * math.nan
            return terms

        return watching

    def step(self, denominator: float, rows: Sequence[int] | None = None) -> StepStats:
        """The trainer's step with the gradients of these rows (None = all). Raises `TrainingError`, on all
        ranks alike, once more steps in a row were left out than `train.max_skipped_updates`."""
        stats = self._updater.trainer.step(denominator)
        self._updates += 1
        if not stats.skipped:
            self.in_a_row = 0
            self._blamed.clear()
            return stats
        self.skipped += 1
        self.in_a_row += 1
        blamed = self._take_blamed()
        place = self._write(
            {
                "weight_version": self._updater.trainer.version - 1,  # that computed the loss
                "gradient_norm": str(stats.grad_norm),
                "learning_rate": stats.lr,
                "denominator": denominator,
                "rows_of_the_update": list(range(self._count) if rows is None else rows),
                "rows_with_such_a_loss": blamed,
                "left_out_in_a_row": self.in_a_row,
            }
        )
        if self.in_a_row > self._limit:
            what = f"the loss of {_places(blamed)}" if blamed else "the gradient"
            raise TrainingError(
                f"{self._name}: {self.in_a_row} optimizer steps of the {self._whose} in a row were left out "
                f"because {what} was not finite, more than train.max_skipped_updates={self._limit}; "
                f"{self._advice(place)}"
            )
        return stats

    def _start(self, *, shared: bool = False) -> None:
        self.skipped = 0
        self._shared = shared
        first = self._updater.share.index == 0 and self._updater.share.speaks
        self._keeps = self._folder is not None and (shared or first) and self._written < MOST_WRITTEN
        self._updates = self._count = self._bytes = 0
        self._rows: list[Experience] = []
        self._blamed: set[int] = set()

    def _take_blamed(self) -> list[int]:
        """Of all ranks, where all have the same rows."""
        blamed, self._blamed = self._blamed, set()
        if self._shared or not self._count:
            return sorted(blamed)
        flags = self._updater.trainer.all_sum([float(row in blamed) for row in range(self._count)])
        return [row for row, flag in enumerate(flags) if flag]

    def _write(self, facts: Mapping[str, Any]) -> Path | None:  # Any: JSON values
        """Where the rows are now; None where this rank does not write."""
        if self._folder is None or not self._keeps or self._written >= MOST_WRITTEN:
            return None
        self._written += 1
        whose = "" if self._whose == OWN else f"-{self._whose}"
        part = f"-part_{self._updater.share.index}" if self._shared else ""
        folder = self._folder / f"{self._name}-update_{self._updates}{whose}{part}"
        left = self._count - len(self._rows)
        told = {"part": self._name, "model": self._whose, **facts, "rows_too_large_to_keep": left}
        write_batch(folder, self._rows, told)
        return folder

    def _advice(self, place: Path | None) -> str:
        """What may be the cause, and what to do. Where ranks have the same rows, every rank asks."""
        where = place or self._folder
        kept = f"; the rows are in {where}" if where else ""
        broken = None if self._shared else self._broken_weight()
        if broken:
            return (
                f"weight {broken!r} is not finite itself{kept}. Go on from a checkpoint of before, with a "
                "lower optimizer.lr or optimizer.grad_clip"
            )
        return (
            f"all weights are finite{kept}. Check what these rows show and their rewards, lower optimizer.lr "
            "or optimizer.grad_clip, or train in float32; the last checkpoint has nothing of it"
        )

    def _broken_weight(self) -> str | None:
        for bucket in self._updater.trainer.weights():
            for name, tensor in bucket.tensors.items():
                if not bool(torch.isfinite(tensor).all()):
                    return name
        return None


def _places(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows ({shown})"
