"""The training of one step, from rows that come in parts. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from rlinf_core.roles.batching import mini_batches
from rlinf_core.roles.report import SHOWN, Part, Spread, TrainReport, add, averages, show
from rlinf_core.types import Experience

if TYPE_CHECKING:
    from rlinf_core.api import Advantages, ScoredBatch
    from rlinf_core.roles.columns import Columns
    from rlinf_core.roles.ordering import Piece
    from rlinf_core.roles.update import Updater


class StepUpdate:
    """The training of one step from parts of its rows, given one after the other.

    With one optimizer step, each part's gradient is added as it comes, so that training overlaps with
    what makes the rows; several optimizer steps need every row first. Rows without a reward, and those of
    weights before the version `oldest`, are left out. With a `piece` only its rows get their gradient here,
    and what is said of all is said with the first.
    """

    def __init__(
        self, updater: Updater, step: int, oldest: int | None = None, piece: Piece | None = None
    ) -> None:
        self.updater = updater
        self._trains = updater if piece is None else updater.alone(piece.index, piece.count)
        self._tells = not updater.critic and (piece is None or piece.index == 0)
        self.step = step
        self._oldest = oldest
        self._too_old = 0
        self.report = TrainReport()
        train = updater.config.train
        self._several = train.mini_batches * train.update_epochs > 1
        self._objective = updater.objective(step)
        self._held: list[Experience] = []
        self.rows = 0  # that were added and count, with a gradient or not
        self.active = 0  # of the rows: those with a gradient
        self._masks: list[Tensor] = []
        self._facts: dict[str, list[tuple[float, int]]] = {}
        self._seen = Spread()
        updater.guard.begin(f"step_{step + 1}")

    def add(self, rows: Sequence[Experience]) -> None:
        """Take some rows; parts hold what advantages belong together, such as whole groups."""
        rows = self._fit(rows)
        first = self.updater.guard.take(rows)
        if self._several:
            self._held += rows
        elif rows:
            self._add(rows, first)

    def finish(self) -> TrainReport:
        """Make the optimizer steps; none if there was no row."""
        if self._held:
            self._epochs(self._held)
        elif self.rows:
            apply(self.updater, self.denominator, self.active, self.rows, self.report)
        self.report.facts |= averages(self._facts) | self._seen.facts("advantage")
        if self._oldest is not None:
            self.report.facts["stale_rows"] = self._too_old
        return self.report

    @property
    def denominator(self) -> float:
        """Of the rows that were added, with one optimizer step."""
        return self.updater.algorithm.denominator(_stacked(self._masks)) if self._masks else 0.0

    def part(self) -> Part:
        """What is said of them."""
        return Part(self.report.sums, self.report.peaks, self._facts, self._seen)

    def _fit(self, rows: Sequence[Experience]) -> list[Experience]:
        scored = [row for row in rows if row.error is None]
        if self._oldest is None:
            return scored
        fit = [row for row in scored if row.weight_version >= self._oldest]
        self._too_old += len(scored) - len(fit)
        return fit

    def _add(self, rows: Sequence[Experience], first: int) -> None:
        batch, columns, idle = self._judge(rows)
        active = self._active_of(range(len(rows)), idle)
        if self._objective is None:
            return
        self._trains.accumulate(rows, active, columns, *self._objective, self.report, first)
        self._masks.append(batch.mask_BT)
        self.rows += len(rows)
        self.active += len(active)

    def _epochs(self, rows: Sequence[Experience]) -> None:
        batch, columns, idle = self._judge(rows)
        updater, train = self.updater, self.updater.config.train
        if self._objective is None:
            return
        for epoch in range(train.update_epochs):
            seed = draw_seed(updater.config.seed, self.step, epoch)
            for part in mini_batches(len(rows), train.mini_batches, seed):
                active = self._active_of(part, idle)
                updater.accumulate(rows, active, columns, *self._objective, self.report)
                mask_BT = batch.mask_BT.index_select(0, torch.tensor(part))
                denominator = updater.algorithm.denominator(mask_BT)
                apply(updater, denominator, len(active), len(part), self.report, part)
                columns.fresh = False

    def _judge(self, rows: Sequence[Experience]) -> tuple[ScoredBatch, Columns, list[bool]]:
        """With rows that need no gradient."""
        updater = self.updater
        batch, advantages, columns = updater.judge(rows, several=self._several)
        idle_B = ~batch.mask_BT.any(-1)
        if self._tells:
            self._note(advantages, batch, len(rows))
            self._show(rows, advantages, columns)
        if not updater.critic:
            idle_B = idle_B | updater.algorithm.gradient_free(batch, advantages)
        return batch, columns, idle_B.tolist()

    def _note(self, advantages: Advantages, batch: ScoredBatch, rows: int) -> None:
        for name, value in advantages.metrics.items():
            if isinstance(value, tuple):
                add(self.report.sums, name, *value)
            else:
                self._facts.setdefault(name, []).append((value, rows))
        self._seen.add(advantages.advantages_BT[batch.mask_BT])

    def _show(self, rows: Sequence[Experience], advantages: Advantages, columns: Columns) -> None:
        """With how the trainer's own log-probabilities differ, where they are known beforehand."""
        old_BT = columns.old_BT
        for i in sorted(range(len(rows)), key=lambda i: (rows[i].group, rows[i].replica))[:SHOWN]:
            length = len(rows[i].mask)
            found = {"advantages": advantages.advantages_BT[i, :length].tolist()}
            if old_BT is not None and old_BT is not columns.rollout_BT:
                found["mismatch"] = (old_BT[i, :length] - columns.rollout_BT[i, :length]).tolist()
            show(self.report.shown, {(rows[i].group, rows[i].replica): found})

    def _active_of(self, part: Sequence[int], idle: Sequence[bool]) -> list[int]:
        skip = self.updater.config.train.skip_gradient_free
        return [i for i in part if not (skip and idle[i])]


def apply(
    updater: Updater,
    denominator: float,
    active: int,
    rows: int,
    report: TrainReport,
    part: Sequence[int] | None = None,
) -> None:
    """One optimizer step with the gradient of so many rows (of the step's, `part`; None = all); none if no
    decision is trained."""
    if not denominator:
        return
    stats = updater.guard.step(denominator, part)
    whose = "critic_" if updater.critic else ""
    add(report.sums, f"{whose}grad_norm", stats.grad_norm, 1)
    report.facts[f"{whose}skipped_steps"] = float(updater.guard.skipped)
    add(report.sums, f"{whose}active_rows", active, rows)
    report.facts[f"{whose}lr"] = stats.lr


def _stacked(masks: Sequence[Tensor]) -> Tensor:
    """Masks of different widths as one of all rows."""
    width = max(mask_BT.shape[1] for mask_BT in masks)
    return torch.cat([functional.pad(mask_BT, (0, width - mask_BT.shape[1])) for mask_BT in masks])


def draw_seed(run_seed: int, step: int, epoch: int) -> int:
    """The seed of one epoch's shuffle."""
    return (run_seed * 1_000_003 + step) * 1_009 + epoch
