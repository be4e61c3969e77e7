"""The training of one step whose rows the ranks share out among themselves while they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rlinf_core.roles.ordering import Piece
from rlinf_core.roles.reference import compared
from rlinf_core.roles.report import Part, Shown, TrainReport, show
from rlinf_core.roles.step_update import StepUpdate, apply, draw_seed

if TYPE_CHECKING:
    from rlinf_core.roles.update import Updater
    from rlinf_core.types import Experience


class SharedUpdate:
    """One rank's training of the units of rows that it was given, each by itself: advantages, the reference
    where there is one, and the gradient. Of a long unit it may be given a piece: then others have the
    gradient of the other rows.

    What a unit gives depends on its rows, the weights and the seed, not on the rank, and the trainer adds up
    units in any order to the same bits. So does everything that is told of them. With one optimizer step.
    """

    def __init__(self, updater: Updater, step: int) -> None:
        self.updater = updater
        self.step = step
        self._alone = updater.alone()
        self._parts: dict[tuple[int, int], Part] = {}
        self._shown: Shown = {}
        updater.guard.begin(f"step_{step + 1}", shared=True)
        groups = updater.config.train.prompts_per_step
        self._counts = {name: [0.0] * groups for name in ("denominator", "active", "rows")}  # by first group

    def add(self, rows: Sequence[Experience], piece: Piece | None = None) -> None:
        """Train on a unit, whole groups, or on a piece of it."""
        piece = piece or Piece()
        number = min(row.group for row in rows) % self.updater.config.train.prompts_per_step
        draws = number * piece.count + piece.index
        torch.manual_seed(draw_seed(self.updater.config.seed, self.step, draws))  # such as of dropout
        scored = [row for row in rows if row.error is None]
        if self.updater.algorithm.needs.reference and scored:
            for _ in compared(self._alone, scored):
                pass
        unit = StepUpdate(self._alone, self.step, piece=piece)
        unit.add(scored)
        self.updater.trainer.close_part()
        self._parts[number, piece.index] = unit.part()
        if piece.index:
            return
        show(self._shown, unit.report.shown)
        for name, count in (("denominator", unit.denominator), ("active", unit.active), ("rows", unit.rows)):
            self._counts[name][number] = count

    def finish(self) -> TrainReport:
        """Make the optimizer step, with the other ranks; none if there was no row."""
        report = TrainReport(parts=self._parts, shown=self._shown)
        trainer = self.updater.trainer
        summed = trainer.all_sum([count for counts in self._counts.values() for count in counts])
        groups = len(summed) // len(self._counts)
        denominator, active, rows = (sum(summed[i : i + groups]) for i in range(0, len(summed), groups))
        if not self._parts:
            trainer.close_part()
        apply(self.updater, denominator, int(active), int(rows), report)
        return report
