"""The actor: the trained policy, whose weights others act with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.errors import CheckpointError
from rlinf_core.roles.demonstrations import Demonstrations
from rlinf_core.roles.publishing import Publisher
from rlinf_core.roles.trained import TrainedWorker
from rlinf_core.types import Experience

if TYPE_CHECKING:
    from rlinf_core.api import OptimizerConfig, Want
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.estimates import Estimates
    from rlinf_core.roles.report import TrainReport
    from rlinf_core.roles.setup import Spaces
    from rlinf_core.worker import WorkerContext


class ActorWorker(Publisher, TrainedWorker):
    """One rank of the trained policy."""

    _demonstrations: Demonstrations | None = None  # while they are imitated

    def __init__(self, context: WorkerContext, config: RunConfig, **more: Any) -> None:
        super().__init__(context, config, **more)
        self.checks = config.train.check_weights
        self.on_device = config.train.device_weights

    def imitate(self, batches: Sequence[Sequence[Experience]]) -> TrainReport:
        """One supervised step a batch."""
        return self.updater.imitate(batches)

    def imitate_recorded(self, first: int, count: int, size: int = 0) -> TrainReport:
        """`count` supervised steps on recorded episodes, numbered on from `first`, of `size` decisions each
        (0 = as a warm start)."""
        warm = self.config.warm_start
        if self._demonstrations is None:
            self._demonstrations = Demonstrations.load(
                warm.demonstrations, self.updater.model, cast("Spaces", self.spaces), self.config.seed
            )
        recorded = self._demonstrations
        return self.updater.imitate(
            recorded.batch(step, size or warm.batch_size) for step in range(first, first + count)
        )

    def estimate(
        self, rows: Sequence[Experience], want: frozenset[Want], *, reference: bool = False
    ) -> Estimates:
        """What the policy, or the initial one, says of rows; for workers beside it."""
        return self.updater.estimate(rows, want, reference=reference)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Start with a fresh optimizer, weights kept."""
        self.trainer.reset_optimizer(optimizer, total_steps)

    def start_rl(self) -> None:
        """Leave supervised training: the run's own optimizer, schedule and reference from here on."""
        self._demonstrations = None
        if self.algorithm.needs.reference:
            self.trainer.mark_reference()
        self.trainer.reset_optimizer(self.config.optimizer, self.optimizer_steps())

    def export(self, path: str) -> None:
        """Write the policy in the model's own format."""
        try:
            self.trainer.export(Path(path))
        except OSError as err:
            raise CheckpointError(
                f"cannot write the exported model to {path}: {err.strerror or err}; the checkpoint of the "
                "last step is complete: free some space and resume the run"
            ) from err
