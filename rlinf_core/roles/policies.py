"""The actor of several policies, each with an update of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.config.schema import of_policy
from rlinf_core.policies import of_policy as rows_of
from rlinf_core.roles.actor import ActorWorker
from rlinf_core.roles.reference import compared
from rlinf_core.roles.report import TrainReport
from rlinf_core.roles.saving import Staged
from rlinf_core.roles.setup import algorithm_needs, build_algorithm, build_model
from rlinf_core.roles.step_update import StepUpdate, draw_seed
from rlinf_core.roles.trainers import Trainers
from rlinf_core.roles.update import Updater
from rlinf_core.types import OWN, Experience
from rlinf_core.worker import WorkerContext, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Trainer
    from rlinf_core.config.schema import RunConfig


class PoliciesWorker(ActorWorker):
    """One rank of the run's own policy and of those beside it. Each is trained on what it said in the
    episodes of a step, by its own algorithm and optimizer; the run's own comes first."""

    trainer: Trainers

    def __init__(self, context: WorkerContext, config: RunConfig, **more: Any) -> None:
        super().__init__(context, config, **more)
        own = self.trainer
        self.updaters = {OWN: self.updater}
        for number, name in enumerate(config.policies, 1):
            torch.manual_seed(draw_seed(config.seed, context.rank, number))
            self.updaters[name] = self._updater(name)
        trainers: dict[str, Trainer] = {OWN: own}
        trainers |= {name: updater.trainer for name, updater in self.updaters.items() if name != OWN}
        self.trainer = Trainers(trainers)
        self._version = 0  # of all of them together, before this step's updates
        for updater in self.updaters.values():
            updater.weights_version = lambda: self._version

    def _updater(self, name: str) -> Updater:
        config = of_policy(self.config, name)
        rank, size = self.context.rank, self.context.world_size
        model = build_model(config)
        keeps = algorithm_needs(config).reference
        trainer = self.build_trainer(
            config, model, config.optimizer, sampling=config.sampling, keep_reference=keeps
        )
        return Updater(trainer, build_algorithm(config), model, config, rank, size, name=name)

    @stage
    def train(
        self, chunks: Iterator[list[Experience]], *, step: int, oldest: int | None = None
    ) -> Generator[list[Experience], None, TrainReport]:
        """As of one policy; what is told of others stands below their names."""
        self._version = self.trainer.version
        updates = {name: StepUpdate(updater, step, oldest) for name, updater in self.updaters.items()}
        for chunk in chunks:
            for name, update in updates.items():
                rows = rows_of(chunk, name)
                self._compare(name, rows)
                update.add(rows)
        yield from ()
        reports = {name: update.finish() for name, update in updates.items()}
        return _together(reports)

    def _compare(self, name: str, rows: Sequence[Experience]) -> None:
        """The reference of others is asked here; every rank computes all of it."""
        updater = self.updaters[name]
        if name != OWN and updater.algorithm.needs.reference and rows:
            for _ in compared(updater.alone(), rows):
                pass

    def imitate(self, batches: Sequence[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch, of each policy that learns from demonstrations."""
        batches = list(batches)
        learning = [OWN, *(name for name, policy in self.config.policies.items() if policy.warm_start)]
        return _together({name: self.updaters[name].imitate(batches) for name in learning})

    def start_rl(self) -> None:
        """Leave supervised training: each with its own optimizer from here on."""
        for name, updater in self.updaters.items():
            if updater.algorithm.needs.reference:
                updater.trainer.mark_reference()
            updater.trainer.reset_optimizer(of_policy(self.config, name).optimizer, self.optimizer_steps())

    def stage_save(self, *, background: bool) -> Staged:
        """With the state of each algorithm."""
        states = {name: dict(updater.algorithm.state_dict()) for name, updater in self.updaters.items()}
        return replace(super().stage_save(background=background), algorithm=states)

    def load(self, path: str, algorithm_state: dict[str, Any]) -> None:
        """Restore what was written."""
        super().load(path, algorithm_state[OWN])
        for name in self.config.policies:
            self.updaters[name].algorithm.load_state_dict(algorithm_state[name])

    @on_host
    def limit_micro_batch(self, rows: int) -> None:
        """Of each."""
        for updater in self.updaters.values():
            updater.micro_batch = rows


def _together(reports: dict[str, TrainReport]) -> TrainReport:
    """What the run's own tells, and below their names what others tell."""
    whole = reports.pop(OWN)
    for policy, report in reports.items():
        whole.sums |= {f"{policy}/{name}": value for name, value in report.sums.items()}
        whole.facts |= {f"{policy}/{name}": value for name, value in report.facts.items()}
        whole.peaks |= {f"{policy}/{name}": value for name, value in report.peaks.items()}
    return whole
