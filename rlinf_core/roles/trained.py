"""What actor and critic have in common: a trainer of one model, its updates and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.comm.stream import Chunk
from rlinf_core.roles.moving import Movable, Place
from rlinf_core.roles.ordering import parted
from rlinf_core.roles.saving import Part, Staged, restore_random_state
from rlinf_core.roles.setup import Spaces, build_algorithm, build_backend, build_critic, build_model
from rlinf_core.roles.shared_update import SharedUpdate
from rlinf_core.roles.step_update import StepUpdate, draw_seed
from rlinf_core.roles.update import Updater
from rlinf_core.worker import WorkerContext, on_host, stage

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import Model, OptimizerConfig, Trainer
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.report import TrainReport
    from rlinf_core.types import Experience


class TrainedWorker(Movable):
    """One rank of a trained model: the policy, or a critic of its own."""

    def __init__(
        self,
        context: WorkerContext,
        config: RunConfig,
        *,
        critic: bool = False,
        keep_reference: bool = False,
        spaces: Spaces | None = None,
        joins: Mapping[str, Any] | None = None,  # Any: facts of those that train already
    ) -> None:
        super().__init__(context)
        self.config = config
        self.critic = critic
        self.spaces = spaces  # of an embodied task
        self._part: Part | None = None  # of a checkpoint that is being written
        os.environ.update(context.rendezvous())
        self.algorithm = build_algorithm(config)
        torch.manual_seed(draw_seed(config.seed, context.rank, 0))  # of what a trainer draws, such as dropout
        self.model = build_critic(config, spaces) if critic else build_model(config, spaces)
        how: dict[str, Any] = {"sampling": config.sampling, "keep_reference": keep_reference}
        if joins is not None:
            self.prepare_to_join(self.model, joins, **how)
            return
        optimizer = config.critic_optimizer if critic else config.optimizer
        self.settle_in(self.build_trainer(config, self.model, optimizer, **how))

    def build_trainer(
        self, config: RunConfig, model: Model, optimizer: OptimizerConfig, **how: Any
    ) -> Trainer:
        """Of this rank. `how` are settings of `TrainBackend.build`."""
        place = Place(self.context.rank, self.context.world_size)
        return build_backend(config).build(model, optimizer, config.lora, self.trainer_context(place), **how)

    def settle_in(self, trainer: Trainer) -> None:
        """Train with it, as the rank that the context says."""
        rank, size = self.context.rank, self.context.world_size
        self.trainer = trainer
        self.updater = Updater(
            trainer, self.algorithm, self.model, self.config, rank, size, critic=self.critic
        )

    @stage
    def train(
        self, chunks: Iterator[list[Experience]], *, step: int, oldest: int | None = None
    ) -> Generator[list[Experience], None, TrainReport]:
        """Add each chunk's gradient as it comes, then update; returns a `TrainReport`.

        Every rank gets every chunk. A chunk holds what advantages belong together, in order. Rows of weights
        before the version `oldest` are not trained.
        """
        update = StepUpdate(self.updater, step, oldest)
        for chunk in chunks:
            update.add(chunk)
        yield from ()
        return update.finish()

    @stage
    def train_shared(
        self, chunks: Iterator[Chunk], *, step: int
    ) -> Generator[list[Experience], None, TrainReport]:
        """Add the gradients of the units, or pieces of them, that this rank is given, then update; returns a
        `TrainReport`.

        The ranks share the chunks out by asking for them: each for one more when it is free.
        """
        update = SharedUpdate(self.updater, step)
        yield []
        for chunk in chunks:
            update.add(*parted(chunk))
            yield []
        return update.finish()

    @on_host
    def any_order(self) -> bool:
        """As the trainer says."""
        return self.trainer.any_order

    @on_host
    def limit_micro_batch(self, rows: int) -> None:
        """At most so many rows in one forward and backward, beside the limit in tokens; 0 = any."""
        self.updater.micro_batch = rows

    def stage_save(self, *, background: bool) -> Staged:
        """Take what a checkpoint keeps, as it is now; one that is being written is waited for."""
        self.finish_save()
        self._part = Part(self.trainer, self.context.rank, background=background)
        return Staged(self._part.size, self.algorithm.state_dict())

    def write_save(self, folder: str, listing: str) -> None:
        """Write what was taken, or begin to; `listing` and the rank name a file that comes to be when all is
        durable."""
        if self._part is not None:
            self._part.write(Path(folder), Path(f"{listing}{self.context.rank}"))

    @on_host
    def check_save(self) -> None:
        """Raise what writing has failed by, if it has."""
        if self._part is not None:
            self._part.check()

    @on_host
    def finish_save(self) -> None:
        """Wait until what was taken is written."""
        part, self._part = self._part, None
        if part is not None:
            part.finish()

    def load(self, path: str, algorithm_state: dict[str, Any]) -> None:
        """Restore what was written."""
        self.trainer.load(Path(path))
        self.algorithm.load_state_dict(algorithm_state)
        restore_random_state(Path(path), self.context.rank)

    def weights_beside(self, path: str, algorithm_state: dict[str, Any]) -> dict[str, float]:
        """Restore what was written, and tell how far each weight was from it: the largest difference of its
        numbers, 0 where all bits are equal."""
        buckets = self.trainer.weights()
        before = {name: _copy(tensor) for bucket in buckets for name, tensor in bucket.tensors.items()}
        self.load(path, algorithm_state)
        return {
            name: _gap(tensor, before[name])
            for bucket in self.trainer.weights()
            for name, tensor in bucket.tensors.items()
        }

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
        """Finish what is being written, and leave process groups."""
        try:
            self.finish_save()
        finally:
            self.stay()
            if hasattr(self, "trainer"):
                self.trainer.close()


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _gap(one: Tensor, other: Tensor) -> float:
    one = one.detach().cpu()
    return 0.0 if torch.equal(one, other) else float((one.double() - other.double()).abs().max())
