"""The actor: advantages, then optimizer steps on this rank's share of a step."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rlinf_core.api import OptimizerConfig, TrainerContext
from rlinf_core.errors import CheckpointError
from rlinf_core.roles.setup import Spaces, build_algorithm, build_backend, build_model
from rlinf_core.roles.update import StepUpdate, TrainReport, Updater, draw_seed
from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import WeightBucket
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.weights import Receiver


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
        os.environ.update(context.rendezvous())
        self.algorithm = build_algorithm(config)
        torch.manual_seed(draw_seed(config.seed, context.rank, 0))  # of what a trainer draws, such as dropout
        model = build_model(config, spaces)
        self.trainer = build_backend(config).build(
            model,
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
        self.updater = Updater(self.trainer, self.algorithm, model, config, context.rank, context.world_size)

    @stage
    def train(
        self, chunks: Iterator[list[Experience]], *, step: int
    ) -> Generator[list[Experience], None, TrainReport]:
        """Add each chunk's gradient as it comes, then update; returns a `TrainReport`.

        Every rank gets every chunk. A chunk holds what advantages belong together, in order.
        """
        update = StepUpdate(self.updater, step)
        for chunk in chunks:
            update.add([row for row in chunk if row.error is None])
        yield from ()
        return update.finish()

    @stage
    def publish(
        self,
        chunks: Iterator[list[Any]],
        *,
        local: dict[int, str],
        remote: bool,
        trainable_only: bool,
    ) -> Generator[list[WeightBucket], None, int]:
        """Give the current weights to the receiver in this process (`local`: by rank, its name) and, on
        rank 0 with `remote`, to the driver; returns their version. All ranks take part."""
        yields = remote and self.context.rank == 0
        kept: list[WeightBucket] = []

        def pass_on(buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
            for bucket in buckets:
                if yields:
                    kept.append(bucket)
                yield bucket

        buckets = pass_on(self.trainer.weights(trainable_only=trainable_only))
        name = local.get(self.context.rank)
        if name is not None:
            with self.beside(name):
                cast("Receiver", self.context.peers[name]).load_weights(buckets)
        else:
            for _ in buckets:
                if kept:
                    yield [kept.pop()]
        while kept:
            yield [kept.pop(0)]
        return self.trainer.version

    @on_host
    def limit_micro_batch(self, rows: int) -> None:
        """At most so many rows in one forward and backward, beside the limit in tokens; 0 = any."""
        self.updater.micro_batch = rows

    @on_host
    def version(self) -> int:
        """Optimizer steps taken."""
        return self.trainer.version

    def imitate(self, batches: Sequence[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch."""
        return self.updater.imitate(batches)

    def logprobs(self, rows: Sequence[Experience], part: Sequence[int], *, reference: bool = False) -> Tensor:
        """`[len(part), T]` log-probabilities of some rows, without gradient; for a reference beside it."""
        return self.updater.logprobs(rows, part, reference=reference)

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

    def memory_bytes(self) -> float:
        """As the trainer says."""
        return self.trainer.memory_bytes()

    def onload(self) -> None:
        """Bring the trainer onto its device."""
        self.trainer.onload()

    def offload(self) -> None:
        """Free the device for others."""
        self.trainer.offload()

    def close(self) -> None:
        """Leave process groups."""
        self.trainer.close()

    def _optimizer_steps(self) -> int:
        train = self.config.train
        return train.steps * train.mini_batches * train.update_epochs
