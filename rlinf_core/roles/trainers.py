"""The trainers of several policies as one, whose weights are those of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.api.backend import POLICY, MetricSums, StepStats, Trainer, WeightBucket
from rlinf_core.api.snapshot import Snapshot
from rlinf_core.types import OWN

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import LossFunction, OptimizerConfig, PolicyOutputs, TrainBatch, Want, WeightPart

OTHERS = "policies"  # folder of an export, beside the run's own policy


class Trainers(Trainer):
    """By the names of policies, the run's own among them; they share nothing. Weights are named
    `POLICY:WEIGHT`, and the version counts the optimizer steps of all. What trains, trains the run's own:
    updates of others go to their own trainers."""

    def __init__(self, each: Mapping[str, Trainer]) -> None:
        self.each = dict(each)
        self.own = self.each[OWN]
        self.share = self.own.share

    @property
    def version(self) -> int:  # type: ignore[override]  # counted, never set
        return sum(trainer.version for trainer in self.each.values())

    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        return self.own.outputs(inputs, want, reference=reference)

    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        return self.own.accumulate(batch, loss, want)

    def step(self, denominator: float) -> StepStats:
        return self.own.step(denominator)

    def all_sum(self, values: list[float]) -> list[float]:
        return self.own.all_sum(values)

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        version, last = self.version, list(self.each)[-1]
        for name, trainer in self.each.items():
            for bucket in trainer.weights(trainable_only=trainable_only):
                tensors = {f"{name}:{weight}": tensor for weight, tensor in bucket.tensors.items()}
                yield WeightBucket(version, tensors, bucket.last and name == last)

    def parts(self, *, trainable_only: bool = False) -> Iterator[dict[str, WeightPart]] | None:
        found = {name: each.parts(trainable_only=trainable_only) for name, each in self.each.items()}
        held = {name: parts for name, parts in found.items() if parts is not None}
        if len(held) < len(found):
            return None
        return (
            {f"{name}:{weight}": part for weight, part in bucket.items()}
            for name, parts in held.items()
            for bucket in parts
        )

    def save(self, path: Path) -> None:
        for name, trainer in self.each.items():
            trainer.save(path / name)

    def load(self, path: Path) -> None:
        for name, trainer in self.each.items():
            trainer.load(path / name)

    def snapshot(self, *, apart: bool) -> Snapshot | None:
        taken = {name: trainer.snapshot(apart=apart) for name, trainer in self.each.items()}
        known = {name: each for name, each in taken.items() if each is not None}
        return Snapshots(known) if len(known) == len(taken) else None

    def export(self, path: Path) -> None:
        """The run's own as without others, each of these below `policies`."""
        self.own.export(path)
        for name, trainer in self.each.items():
            if trainer is not self.own:
                trainer.export(path / OTHERS / name)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        for trainer in self.each.values():
            trainer.reset_optimizer(optimizer, total_steps)

    def memory_bytes(self) -> float:
        return sum(trainer.memory_bytes() for trainer in self.each.values())

    def onload(self) -> None:
        for trainer in self.each.values():
            trainer.onload()

    def offload(self) -> None:
        for trainer in self.each.values():
            trainer.offload()

    def close(self) -> None:
        for trainer in reversed(self.each.values()):
            trainer.close()


class Snapshots(Snapshot):
    """Of all of them."""

    def __init__(self, each: Mapping[str, Snapshot]) -> None:
        self._each = each
        self.size = sum(snapshot.size for snapshot in each.values())

    def write(self, path: Path) -> Sequence[Path]:
        written: list[Path] = []
        for name, snapshot in self._each.items():
            (path / name).mkdir(parents=True, exist_ok=True)
            written += snapshot.write(path / name)
        return written
