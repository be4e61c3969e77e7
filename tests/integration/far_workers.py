"""Workers of two machines, importable in their processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_core.api import WeightBucket
from rlinf_core.comm.places import checksum
from rlinf_core.comm.remote import ChannelHandle
from rlinf_core.roles.publishing import Publisher
from rlinf_core.roles.weights import Receiver
from rlinf_core.worker import Worker, WorkerContext, on_host, stage

SHAPES = {
    "embedding": (3000, 300),
    "layer.0": (700, 1000),
    "layer.1": (700, 1000),
    "norm": (33,),
    "none": (0, 3),
}
FROZEN = "embedding"


class Weights:
    """As much of a trainer as an update sees: bfloat16 but for the norm."""

    def __init__(self) -> None:
        self.version = 0
        draw = torch.Generator().manual_seed(0)
        self.tensors = {
            name: torch.randn(shape, generator=draw).to(torch.float32 if name == "norm" else torch.bfloat16)
            for name, shape in SHAPES.items()
        }

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """One tensor a bucket."""
        names = [name for name in SHAPES if not (trainable_only and name == FROZEN)]
        for name in names:
            yield WeightBucket(self.version, {name: self.tensors[name]}, last=name == names[-1])


class Sender(Publisher):
    """Has weights that change."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.trainer: Any = Weights()

    def train(self, share: float) -> dict[str, int]:
        """Change this share of what is trained; returns checksums."""
        self.trainer.version += 1
        for name, tensor in self.trainer.tensors.items():
            if name != FROZEN:
                tensor.view(-1)[:: max(1, round(1 / share))] += 1.0
        return {name: checksum(tensor) for name, tensor in self.trainer.tensors.items()}


class Taker(Receiver):
    """Copies what it is sent."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.own: dict[str, torch.Tensor] = {}

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Into memory of its own."""
        version = -1
        for bucket in buckets:
            self.own |= {name: tensor.detach().clone() for name, tensor in bucket.tensors.items()}
            version = bucket.version
        return version

    def held(self) -> dict[str, int]:
        """Checksums."""
        return {name: checksum(tensor) for name, tensor in self.own.items()}


class Far(Worker):
    """Counts and doubles what it is sent."""

    @on_host
    def answer(self) -> str:
        """At once."""
        return "here"

    def total(self, array: NDArray[np.int64]) -> int:
        """Of all elements."""
        return int(array.sum())

    @stage
    def double(self, chunks: Iterator[list[NDArray[np.int64]]]) -> Iterator[list[NDArray[np.int64]]]:
        """Each one."""
        for chunk in chunks:
            yield [2 * each for each in chunk]

    def pass_on(self, source: ChannelHandle, target: ChannelHandle, count: int) -> None:
        """From one channel to the other."""
        with source.connect(self.context.name) as incoming, target.connect(self.context.name) as outgoing:
            for _ in range(count):
                outgoing.put(incoming.get(timeout_s=30))
