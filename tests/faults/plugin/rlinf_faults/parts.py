"""What fails: each part is a plain working one that visits its places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlinf_model_mlp_policy.model import MLPPolicy

from rlinf_core.api import ActionSample, WeightBucket
from rlinf_core.testing.fakes import TinyTextModel
from rlinf_core.testing.simple_backend import SimpleBackend, SimpleTrainer
from rlinf_core.testing.simple_rollout import SimpleRollout
from rlinf_core.types import Request, Sample, Sampling
from rlinf_faults.strike import visit


class FaultyText(TinyTextModel):
    """Writes letters."""

    def __init__(self, config: Any = None) -> None:
        self.config = config


class FaultyPolicy(MLPPolicy):
    """Acts."""

    def act(self, *args: Any, **kwargs: Any) -> ActionSample:
        visit("policy.act")
        return super().act(*args, **kwargs)


class FaultyTrainer(SimpleTrainer):
    """Trains."""

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        visit("actor.weights")
        yield from super().weights(trainable_only=trainable_only)

    def accumulate(self, *args: Any, **kwargs: Any) -> Any:
        visit("actor.accumulate")
        return super().accumulate(*args, **kwargs)

    def step(self, denominator: float) -> Any:
        visit("actor.step")
        return super().step(denominator)

    def save(self, path: Path) -> None:
        visit("actor.save")
        super().save(path)
        visit("actor.saved")


class FaultyBackend(SimpleBackend):
    """One rank."""

    trainer = FaultyTrainer


class FaultyRollout(SimpleRollout):
    """One response after the other."""

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        visit("rollout.load")
        return super().load_weights(buckets)

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        for samples in super().generate(requests, sampling):
            visit("rollout.generate")
            yield samples
