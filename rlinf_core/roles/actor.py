"""The actor: advantages of a whole step, then optimizer steps on this rank's share of it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf_core.api import (
    Advantages,
    OptimizerConfig,
    ScoredBatch,
    TrainerContext,
)
from rlinf_core.errors import CheckpointError
from rlinf_core.roles.batching import mini_batches, rank_micro_batches, row_tokens
from rlinf_core.roles.columns import Columns, Mismatch, imitation_loss
from rlinf_core.roles.scoring import pad_rows, scored_batch
from rlinf_core.roles.setup import Spaces, build_algorithm, build_backend, build_model
from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig

MetricSums = dict[str, tuple[float, float]]


@dataclass
class TrainReport:
    """What one rank says of one step: sums to be added over ranks, and facts equal on all ranks."""

    sums: MetricSums = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest over ranks is reported
    seconds: float = 0.0


class ActorWorker(Worker):
    """One rank of the trained policy."""

    def __init__(
        self,
        context: WorkerContext,
        config: RunConfig,
        *,
        keep_reference: bool = False,
        spaces: Spaces | None = None,
    ) -> None:
        super().__init__(context)
        self.config = config
        self.algorithm = build_algorithm(config)
        torch.manual_seed(_seed(config.seed, context.rank, 0))  # of what a trainer draws, such as dropout
        self.model = build_model(config, spaces)
        self.trainer = build_backend(config).build(
            self.model,
            config.optimizer,
            config.lora,
            TrainerContext(
                rank=context.rank,
                world_size=context.world_size,
                device=context.device,
                seed=config.seed,
                total_steps=self._optimizer_steps(),
            ),
            sampling=config.sampling,
            keep_reference=keep_reference,
        )

    @stage
    def train(
        self, chunks: Iterator[list[Experience]], *, step: int
    ) -> Generator[list[Experience], None, TrainReport]:
        """Consume every row of the step, then update; returns a `TrainReport`."""
        rows = sorted(
            (row for chunk in chunks for row in chunk if row.error is None),
            key=lambda row: (row.group, row.replica),
        )
        began = time.perf_counter()
        report = self._update(rows, step) if rows else TrainReport()
        report.seconds = time.perf_counter() - began
        yield from ()
        return report

    def imitate(self, batches: Sequence[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch: maximise the log-probability of the rows' decisions."""
        report = TrainReport()
        for rows in batches:
            weights = [row_tokens(row) for row in rows]
            everything = list(range(len(rows)))
            mask_BT = pad_rows([row.mask for row in rows], bool)
            zeros_BT = torch.zeros(mask_BT.shape)
            self._accumulate(
                rows,
                rank_micro_batches(everything, weights, self.context.world_size, self._budget)[self._rank],
                Columns(mask_BT, zeros_BT, zeros_BT),
                imitation_loss,
                report,
            )
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

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Start with a fresh optimizer, weights kept."""
        self.trainer.reset_optimizer(optimizer, total_steps)

    def start_rl(self) -> None:
        """Leave supervised training: the run's own optimizer, schedule and reference from here on."""
        if self.algorithm.needs.reference:
            self.trainer.mark_reference()
        self.trainer.reset_optimizer(self.config.optimizer, self._optimizer_steps())

    def save(self, path: str) -> dict[str, Any]:  # Any: the algorithm's JSON-able state
        """Write the trainer's state below `path`; returns the algorithm's state."""
        try:
            self.trainer.save(Path(path))
        except OSError as err:
            raise CheckpointError(f"cannot write the checkpoint {path}: {err.strerror or err}") from err
        return self.algorithm.state_dict()

    def load(self, path: str, algorithm_state: dict[str, Any]) -> None:
        """Restore what `save` wrote."""
        self.trainer.load(Path(path))
        self.algorithm.load_state_dict(algorithm_state)

    def export(self, path: str) -> None:
        """Write the policy in the model's own format."""
        try:
            self.trainer.export(Path(path))
        except OSError as err:
            raise CheckpointError(
                f"cannot write the exported model to {path}: {err.strerror or err}; the checkpoint of the "
                "last step is complete: free some space and resume the run"
            ) from err

    def close(self) -> None:
        """Leave process groups."""
        self.trainer.close()

    @property
    def _rank(self) -> int:
        return self.context.rank

    @property
    def _budget(self) -> int:
        return self.config.train.micro_batch_tokens

    def _optimizer_steps(self) -> int:
        train = self.config.train
        return train.steps * train.mini_batches * train.update_epochs

    def _update(self, rows: Sequence[Experience], step: int) -> TrainReport:
        batch = scored_batch(rows)
        advantages = self.algorithm.advantages(batch)
        idle_B = self.algorithm.gradient_free(batch, advantages)
        report = TrainReport(facts=dict(advantages.metrics))
        columns = self._columns(rows, batch, advantages)
        weights = [row_tokens(row) for row in rows]
        train = self.config.train
        for epoch in range(train.update_epochs):
            for part in mini_batches(len(rows), train.mini_batches, _seed(self.config.seed, step, epoch)):
                active = [i for i in part if not (train.skip_gradient_free and bool(idle_B[i]))]
                planned = rank_micro_batches(active, weights, self.context.world_size, self._budget)
                self._accumulate(rows, planned[self._rank], columns, self.algorithm.loss, report)
                stats = self.trainer.step(self.algorithm.denominator(batch.mask_BT[part]))
                _add(report.sums, "grad_norm", stats.grad_norm, 1)
                _add(report.sums, "skipped_steps", float(stats.skipped), 1)
                _add(report.sums, "active_rows", len(active), len(part))
                report.facts["lr"] = stats.lr
                columns.fresh = False
        return report

    def _columns(self, rows: Sequence[Experience], batch: ScoredBatch, advantages: Advantages) -> Columns:
        columns = Columns(
            batch.mask_BT,
            advantages.advantages_BT,
            batch.logprobs_BT,
            reference_BT=batch.reference_logprobs_BT,
            returns_BT=advantages.returns_BT,
            values_BT=batch.values_BT,
        )
        train = self.config.train
        stale = any(row.weight_version != self.trainer.version for row in rows)
        several = train.mini_batches * train.update_epochs > 1
        if stale or train.old_logprobs == "rollout":
            columns.old_BT = batch.logprobs_BT
        elif several or train.old_logprobs == "recompute":
            columns.old_BT = self._current_logprobs(rows, batch.mask_BT)
        return columns

    def _current_logprobs(self, rows: Sequence[Experience], mask_BT: Tensor) -> Tensor:
        """Log-probabilities of every row under the current weights; each rank computes its share."""
        weights = [row_tokens(row) for row in rows]
        planned = rank_micro_batches(range(len(rows)), weights, self.context.world_size, self._budget)
        logprobs_BT = torch.zeros(mask_BT.shape)
        for part in planned[self._rank]:
            computed = self.logprobs(rows, part)
            logprobs_BT[part, : computed.shape[1]] = computed
        if self.context.world_size == 1:
            return logprobs_BT * mask_BT
        summed = self.trainer.all_sum(logprobs_BT.flatten().tolist())
        return torch.tensor(summed, dtype=torch.float32).view_as(logprobs_BT) * mask_BT

    def _accumulate(
        self,
        rows: Sequence[Experience],
        planned: Sequence[Sequence[int]],
        columns: Columns,
        loss: Any,  # a LossFunction
        report: TrainReport,
    ) -> None:
        for part in planned:
            chosen = list(part) or [0]
            width = max(len(rows[i].mask) for i in chosen)
            batch = columns.micro_batch(chosen, width, self.model.collate([rows[i] for i in chosen], width))
            if not part:
                batch.mask_BT = torch.zeros_like(batch.mask_BT)
            watch = Mismatch(loss, columns.fresh)
            for name, (total, count) in self.trainer.accumulate(batch, watch).items():
                _add(report.sums, name, total, count)
            report.peaks["logprob_mismatch_max"] = max(
                report.peaks.get("logprob_mismatch_max", 0.0), watch.peak
            )


def _add(sums: MetricSums, name: str, total: float, count: float) -> None:
    before = sums.get(name, (0.0, 0.0))
    sums[name] = (before[0] + float(total), before[1] + float(count))


def _seed(run_seed: int, step: int, epoch: int) -> int:
    return (run_seed * 1_000_003 + step) * 1_009 + epoch
