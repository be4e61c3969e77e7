"""One rank's share of training: rows become micro-batches, their gradients one or more optimizer steps.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf_core.roles.batching import mini_batches, rank_micro_batches, row_tokens
from rlinf_core.roles.columns import Columns, Mismatch, imitation_loss
from rlinf_core.roles.scoring import pad_rows, scored_batch
from rlinf_core.roles.spread import Spread
from rlinf_core.types import Experience

if TYPE_CHECKING:
    from rlinf_core.api import Advantages, Algorithm, Model, ScoredBatch, Trainer
    from rlinf_core.config.schema import RunConfig

MetricSums = dict[str, tuple[float, float]]


@dataclass
class TrainReport:
    """What one rank says of one step: sums to be added over ranks, and facts equal on all ranks."""

    sums: MetricSums = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest over ranks is reported


class Updater:
    """Trains on this rank's share of rows that all ranks have."""

    def __init__(
        self, trainer: Trainer, algorithm: Algorithm, model: Model, config: RunConfig, rank: int, ranks: int
    ) -> None:
        self.trainer = trainer
        self.algorithm = algorithm
        self.model = model
        self.config = config
        self.rank = rank
        self.ranks = ranks
        self.micro_batch = 0  # rows at most; 0 = as many as the budget of tokens allows

    def imitate(self, batches: Sequence[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch: maximise the log-probability of the rows' decisions."""
        report = TrainReport()
        for rows in batches:
            mask_BT = pad_rows([row.mask for row in rows], bool)
            zeros_BT = torch.zeros(mask_BT.shape)
            columns = Columns(mask_BT, zeros_BT, zeros_BT)
            self.accumulate(rows, range(len(rows)), columns, imitation_loss, report)
            self.trainer.step(float(mask_BT.sum()))
        return report

    def logprobs(self, rows: Sequence[Experience], part: Sequence[int], *, reference: bool = False) -> Tensor:
        """`[len(part), T]` log-probabilities of some rows, without gradient. An empty part takes part
        in the collectives all the same."""
        chosen = [rows[i] for i in part or [0]]
        outputs = self.trainer.outputs(
            self.model.collate(chosen), frozenset({"logprobs"}), reference=reference
        )
        return outputs.logprobs_BT.float().cpu()[: len(part)]

    def shares(self, rows: Sequence[Experience], positions: Sequence[int]) -> list[list[int]]:
        """This rank's micro-batches of the rows at these positions; some may be empty."""
        weights = [row_tokens(row) for row in rows]
        budget = self.config.train.micro_batch_tokens
        return rank_micro_batches(positions, weights, self.ranks, budget, self.micro_batch)[self.rank]

    def accumulate(
        self,
        rows: Sequence[Experience],
        positions: Sequence[int],
        columns: Columns,
        loss: Any,  # a LossFunction
        report: TrainReport,
    ) -> None:
        """Add the gradient of the summed loss of the rows at these positions."""
        for part in self.shares(rows, positions):
            chosen = list(part) or [0]
            width = max(len(rows[i].mask) for i in chosen)
            batch = columns.micro_batch(chosen, width, self.model.collate([rows[i] for i in chosen], width))
            if not part:
                batch.mask_BT = torch.zeros_like(batch.mask_BT)
            watch = Mismatch(loss, columns.fresh)
            for name, (total, count) in self.trainer.accumulate(batch, watch).items():
                add(report.sums, name, total, count)
            report.peaks["logprob_mismatch_max"] = max(
                report.peaks.get("logprob_mismatch_max", 0.0), watch.peak
            )

    def columns(
        self, rows: Sequence[Experience], batch: ScoredBatch, advantages: Advantages, *, several: bool
    ) -> Columns:
        """The tensors of some rows; with `several` optimizer steps ahead, old log-probabilities too."""
        columns = Columns(
            batch.mask_BT,
            advantages.advantages_BT,
            batch.logprobs_BT,
            reference_BT=batch.reference_logprobs_BT,
            returns_BT=advantages.returns_BT,
            values_BT=batch.values_BT,
        )
        wanted = self.config.train.old_logprobs
        stale = any(row.weight_version != self.trainer.version for row in rows)
        if stale or wanted == "rollout":
            columns.old_BT = batch.logprobs_BT
        elif several or wanted == "recompute":
            columns.old_BT = self._current_logprobs(rows, batch.mask_BT)
        return columns

    def _current_logprobs(self, rows: Sequence[Experience], mask_BT: Tensor) -> Tensor:
        """Log-probabilities of every row under the current weights; each rank computes its share."""
        logprobs_BT = torch.zeros(mask_BT.shape)
        for part in self.shares(rows, range(len(rows))):
            computed = self.logprobs(rows, part)
            logprobs_BT[part, : computed.shape[1]] = computed
        if self.ranks == 1:
            return logprobs_BT * mask_BT
        summed = self.trainer.all_sum(logprobs_BT.flatten().tolist())
        return torch.tensor(summed, dtype=torch.float32).view_as(logprobs_BT) * mask_BT


class StepUpdate:
    """The training of one step from parts of its rows, given one after the other.

    With one optimizer step, each part's gradient is added as it comes, so that training overlaps with
    what makes the rows; several optimizer steps need every row first.
    """

    def __init__(self, updater: Updater, step: int) -> None:
        self.updater = updater
        self.step = step
        self.report = TrainReport()
        train = updater.config.train
        self._several = train.mini_batches * train.update_epochs > 1
        self._held: list[Experience] = []
        self._rows = 0
        self._active = 0
        self._denominator = 0.0
        self._facts: dict[str, list[tuple[float, int]]] = {}
        self._seen = Spread()

    def add(self, rows: Sequence[Experience]) -> None:
        """Take some rows; parts hold what advantages belong together, such as whole groups."""
        if self._several:
            self._held += rows
        elif rows:
            self._add(rows)

    def finish(self) -> TrainReport:
        """Make the optimizer steps; none if there was no row."""
        if self._held:
            self._epochs(self._held)
        elif self._rows:
            self._apply(self._denominator, self._active, self._rows)
        for name, parts in self._facts.items():
            total = sum(count for _, count in parts)
            mean = sum(value * count for value, count in parts) / total
            self.report.facts[name] = parts[0][0] if len(parts) == 1 else mean
        self.report.facts |= self._seen.facts("advantage")
        return self.report

    def _add(self, rows: Sequence[Experience]) -> None:
        batch, columns, idle_B = self._judge(rows)
        active = self._active_of(range(len(rows)), idle_B)
        updater = self.updater
        updater.accumulate(rows, active, columns, updater.algorithm.loss, self.report)
        self._denominator += updater.algorithm.denominator(batch.mask_BT)
        self._rows += len(rows)
        self._active += len(active)

    def _epochs(self, rows: Sequence[Experience]) -> None:
        batch, columns, idle_B = self._judge(rows)
        updater, train = self.updater, self.updater.config.train
        for epoch in range(train.update_epochs):
            seed = draw_seed(updater.config.seed, self.step, epoch)
            for part in mini_batches(len(rows), train.mini_batches, seed):
                active = self._active_of(part, idle_B)
                updater.accumulate(rows, active, columns, updater.algorithm.loss, self.report)
                self._apply(updater.algorithm.denominator(batch.mask_BT[part]), len(active), len(part))
                columns.fresh = False

    def _judge(self, rows: Sequence[Experience]) -> tuple[ScoredBatch, Columns, Tensor]:
        algorithm = self.updater.algorithm
        batch = scored_batch(rows)
        advantages = algorithm.advantages(batch)
        for name, value in advantages.metrics.items():
            if isinstance(value, tuple):
                add(self.report.sums, name, *value)
            else:
                self._facts.setdefault(name, []).append((value, len(rows)))
        if advantages.mask_BT is not None:
            batch.mask_BT = batch.mask_BT & advantages.mask_BT
        self._seen.add(advantages.advantages_BT[batch.mask_BT])
        columns = self.updater.columns(rows, batch, advantages, several=self._several)
        idle_B = algorithm.gradient_free(batch, advantages) | ~batch.mask_BT.any(-1)
        return batch, columns, idle_B

    def _active_of(self, part: Sequence[int], idle_B: Tensor) -> list[int]:
        skip = self.updater.config.train.skip_gradient_free
        return [i for i in part if not (skip and bool(idle_B[i]))]

    def _apply(self, denominator: float, active: int, rows: int) -> None:
        stats = self.updater.trainer.step(denominator)
        add(self.report.sums, "grad_norm", stats.grad_norm, 1)
        add(self.report.sums, "skipped_steps", float(stats.skipped), 1)
        add(self.report.sums, "active_rows", active, rows)
        self.report.facts["lr"] = stats.lr


def add(sums: MetricSums, name: str, total: float, count: float) -> None:
    """Add to a metric's sum and count."""
    before = sums.get(name, (0.0, 0.0))
    sums[name] = (before[0] + float(total), before[1] + float(count))


def draw_seed(run_seed: int, step: int, epoch: int) -> int:
    """The seed of one epoch's shuffle."""
    return (run_seed * 1_000_003 + step) * 1_009 + epoch
