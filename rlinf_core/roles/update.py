"""One rank's share of training: rows become micro-batches, their gradients one or more optimizer steps.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rlinf_core.api.backend import POLICY, DataShare
from rlinf_core.config.schema import task_of
from rlinf_core.roles.batching import rank_micro_batches, row_tokens, shared_prompts
from rlinf_core.roles.columns import Columns, Mismatch, imitation_loss
from rlinf_core.roles.estimates import LOGPROBS, VALUES, Estimates, estimate
from rlinf_core.roles.guard import Guard
from rlinf_core.roles.promises import expect_advantages
from rlinf_core.roles.report import TrainReport, add
from rlinf_core.roles.scoring import pad_rows, scored_batch
from rlinf_core.types import OWN, Experience

if TYPE_CHECKING:
    from rlinf_core.api import (
        Advantages,
        Algorithm,
        LossFunction,
        Model,
        ScoredBatch,
        TrainBatch,
        Trainer,
        Want,
    )
    from rlinf_core.config.schema import RunConfig


class Updater:
    """Trains on this rank's share of rows that all ranks have."""

    def __init__(
        self,
        trainer: Trainer,
        algorithm: Algorithm,
        model: Model,
        config: RunConfig,
        rank: int,
        ranks: int,
        *,
        critic: bool = False,
        name: str = OWN,
    ) -> None:
        self.name = name  # of the policy, among several
        self.critic = critic  # of a model that gives values and nothing else
        self.head = algorithm.needs.critic == "head" and not critic
        self.trainer = trainer
        self.algorithm = algorithm
        self.model = model
        self.config = config
        self.share = trainer.share or DataShare(rank, ranks)
        self.micro_batch = 0  # rows at most; 0 = as many as the budget of tokens allows
        self.weights_version: Callable[[], int] = lambda: trainer.version  # as rows of these weights call it
        self.guard = Guard(self)
        self._imitated = 0

    def alone(self, index: int = 0, count: int = 1) -> Updater:
        """One that computes all of the rows it is given, or a share of them, whatever other ranks have."""
        own = copy(self)
        own.share = DataShare(index, count)
        return own

    def objective(self, step: int) -> tuple[LossFunction, frozenset[Want]] | None:
        """What is minimised in a step, and the outputs that it takes; None = this model rests."""
        algorithm = self.algorithm
        if self.critic:
            return algorithm.critic_loss, VALUES
        if algorithm.trains_policy(step):
            return algorithm.loss, POLICY | VALUES if self.head else POLICY
        return (algorithm.critic_loss, VALUES) if self.head else None

    def imitate(self, batches: Iterable[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch: maximise the log-probability of the rows' decisions."""
        report = TrainReport()
        for rows in batches:
            mask_BT = pad_rows([row.mask for row in rows], bool)
            zeros_BT = torch.zeros(mask_BT.shape)
            columns = Columns(mask_BT, zeros_BT, zeros_BT)
            self._imitated += 1
            self.guard.begin(f"warm_start_{self._imitated}")
            self.guard.take(rows)
            self.accumulate(rows, range(len(rows)), columns, imitation_loss, LOGPROBS, report)
            self.guard.step(float(mask_BT.sum()))
        return report

    def estimate(
        self, rows: Sequence[Experience], want: frozenset[Want], *, reference: bool = False
    ) -> Estimates:
        """Of these rows, without gradient."""
        return estimate(self.trainer, self.model, rows, want, reference=reference)

    def shares(self, rows: Sequence[Experience], positions: Sequence[int]) -> list[list[int]]:
        """The micro-batches of this rank's share of the rows at these positions; some may be empty."""
        tokens = {i: row_tokens(rows[i]) for i in positions}
        costs = {i: self.model.row_cost(count) for i, count in tokens.items()}
        groups = prompts = None
        if self.trainer.padding_free:
            groups, prompts = shared_prompts({i: rows[i] for i in positions})
            prompts = prompts if self.trainer.shares_prompts else None
        budget, share = self.config.train.micro_batch_tokens, self.share
        cut = rank_micro_batches(
            positions,
            tokens,
            share.count,
            budget,
            self.micro_batch,
            costs=costs,
            groups=groups,
            prompts=prompts,
        )
        return cut[share.index]

    def accumulate(
        self,
        rows: Sequence[Experience],
        positions: Sequence[int],
        columns: Columns,
        loss: LossFunction,
        want: frozenset[Want],
        report: TrainReport,
        first: int = 0,
    ) -> None:
        """Add the gradient of the summed loss of the rows at these positions; the guard knows row 0 by the
        number `first`."""
        watch = Mismatch(loss, columns.fresh and want >= LOGPROBS)
        trained: deque[list[int]] = deque()

        def batches() -> Iterator[TrainBatch]:
            for part in self.shares(rows, positions):
                batch = self._micro_batch(rows, part, columns)
                if batch.decisions:
                    trained.append([first + row for row in part])
                yield batch

        guarded = self.guard.watched(watch, trained)
        for name, (total, count) in self.trainer.accumulate_all(batches(), guarded, want).items():
            add(report.sums, name, total, count)
        if watch.fresh:
            before = report.peaks.get("logprob_mismatch_max", 0.0)
            report.peaks["logprob_mismatch_max"] = max(before, watch.peak)

    def _micro_batch(self, rows: Sequence[Experience], part: Sequence[int], columns: Columns) -> TrainBatch:
        """Of the rows at these positions; of none, one that trains nothing."""
        chosen = list(part) or [0]
        chosen_B = torch.tensor(chosen)
        width = max(len(rows[i].mask) for i in chosen)
        if columns.collator is None:
            inputs = self.model.collate([rows[i] for i in chosen], width)
        else:
            inputs = columns.collator(chosen_B, width)
        batch = columns.micro_batch(chosen_B, width, inputs)
        return batch if part else replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))

    def judge(self, rows: Sequence[Experience], *, several: bool) -> tuple[ScoredBatch, Advantages, Columns]:
        """Advantages of some rows, and the tensors to train on; with `several` optimizer steps ahead, old
        log-probabilities too."""
        version = None if self.critic else self.weights_version()
        batch = scored_batch(rows, version=version, max_length=self._max_length())
        source = self._old_source(rows, several)
        want: frozenset[Want] = LOGPROBS if source == "trainer" else frozenset()
        if self.head:
            want |= VALUES
        before = self._before(rows, batch.mask_BT, want)
        if "values" in want:
            batch.values_BT, batch.final_values_B = before.values_BT, before.final_values_B
        advantages = self.algorithm.advantages(batch)
        expect_advantages(self.algorithm, advantages, batch.mask_BT)
        if advantages.mask_BT is not None:
            batch.mask_BT = batch.mask_BT & advantages.mask_BT
        valued = self.head or self.critic
        columns = Columns(
            batch.mask_BT,
            advantages.advantages_BT,
            batch.logprobs_BT,
            old_BT={"trainer": before.logprobs_BT, "rollout": batch.logprobs_BT, None: None}[source],
            reference_BT=batch.reference_logprobs_BT,
            returns_BT=advantages.returns_BT if valued else None,
            values_BT=batch.values_BT if valued else None,
            max_length=batch.max_length,
            fresh=not self.critic and not self._stale(rows),
            collator=self.model.collator(rows) if several else None,
        )
        return batch, advantages, columns

    def _old_source(self, rows: Sequence[Experience], several: bool) -> Literal["rollout", "trainer"] | None:
        """Whose log-probabilities are the old ones. None = those of the one forward pass that trains: the
        policy is its own sampler, or the trainer's own are wanted and there is one update."""
        wanted = self.config.train.old_logprobs
        if wanted == "auto" and self._stale(rows) and not self.algorithm.needs.recompute_old:
            wanted = "rollout"
        if wanted == "rollout":
            return "rollout"
        return "trainer" if not self.critic and (several or wanted == "recompute") else None

    def _stale(self, rows: Sequence[Experience]) -> bool:
        version = self.weights_version()
        return any(row.weight_version != version for row in rows)

    def _max_length(self) -> int:
        return self.config.sampling.max_new_tokens if task_of(self.config) == "text" else 0

    def _before(self, rows: Sequence[Experience], mask_BT: Tensor, want: frozenset[Want]) -> Estimates:
        """Estimates of every row under the current weights; each rank computes its share."""
        found = Estimates.zeros(*mask_BT.shape)
        if not want:
            return found
        for part in self.shares(rows, range(len(rows))):
            computed = self.estimate([rows[i] for i in part or [0]], want)
            if part:
                found.put(part, computed)
        if self.share.count > 1:
            found.sum_over_ranks(self.trainer, want)
        found.logprobs_BT *= mask_BT
        found.values_BT *= mask_BT
        return found
