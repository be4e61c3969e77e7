"""A worker that makes a row for each request, and dies at some of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from rlinf_core.types import EpisodeRequest, Experience
from rlinf_core.worker import Worker, WorkerContext, stage


class Maker(Worker):
    """Dies of the request of a `seed`, `deaths` times over all its processes, which are counted in a file."""

    def __init__(
        self, context: WorkerContext, *, seed: int = -1, deaths: int = 0, counted: str = "", how: str = "KILL"
    ) -> None:
        super().__init__(context)
        self.seed = seed
        self.deaths = deaths
        self.counted = Path(counted)
        self.how = how

    @stage
    def make(self, chunks: Iterator[list[EpisodeRequest]]) -> Generator[list[Experience], None, int]:
        """Rows two by two, in the order asked for; returns how many there were."""
        made: list[Experience] = []
        total = 0
        for request in (request for chunk in chunks for request in chunk):
            if request.seed == self.seed and self._dies():
                os.kill(os.getpid(), getattr(signal, f"SIG{self.how}"))
            total += 1
            made.append(_row(request, float(total)))
            if len(made) == 2:
                yield made
                made = []
        if made:
            yield made
        return total

    def _dies(self) -> bool:
        died = len(self.counted.read_bytes()) if self.counted.exists() else 0
        if died < self.deaths:
            self.counted.write_bytes(b"x" * (died + 1))
        return died < self.deaths


def _row(request: EpisodeRequest, reward: float) -> Experience:
    return Experience(
        group=request.group,
        replica=request.replica,
        seed=request.seed,
        mask=np.ones(1, dtype=bool),
        logprobs=np.zeros(1, dtype=np.float32),
        weight_version=0,
        reward=reward,
    )
