"""Workers of a test flow: one draws numbers with a weight, the others train the weight on them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from rlinf_core.types import Experience
from rlinf_core.worker import Worker, WorkerContext, stage


class Drawer(Worker):
    """Draws rows around its weight, which it is told before every step."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.weight = 0.0

    def tell(self, weight: float) -> None:
        """The weight to draw with."""
        self.weight = weight

    @stage
    def draw(self, chunks: Iterator[list[tuple[int, int]]]) -> Iterator[list[Experience]]:
        """One row for each (group, replica); its reward follows from them and the weight alone."""
        for chunk in chunks:
            for group, replica in reversed(chunk):
                yield [self._row(group, replica)]

    def _row(self, group: int, replica: int) -> Experience:
        drawn = self.weight + float(np.random.default_rng([group, replica]).normal())
        return Experience(
            group=group,
            replica=replica,
            seed=0,
            mask=np.ones(1, dtype=bool),
            logprobs=np.array([drawn], dtype=np.float32),
            weight_version=0,
            reward=-((drawn - 3.0) ** 2),
        )


class Climber(Worker):
    """One of several ranks that hold the same weight; every rank sees every row."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.weight = 0.0

    def tell(self) -> float:
        """The weight."""
        return self.weight

    @stage
    def climb(self, chunks: Iterator[list[Experience]]) -> Generator[list[Experience], None, int]:
        """One step of `weight += 0.1 * mean(advantage * (draw - weight))`, advantages within chunks'
        groups; returns how many chunks came."""
        total, count, seen = 0.0, 0, 0
        for rows in chunks:
            seen += 1
            for number in sorted({row.group for row in rows}):
                group = [row for row in rows if row.group == number]
                mean = sum(row.reward or 0.0 for row in group) / len(group)
                total += sum(((r.reward or 0.0) - mean) * float(r.logprobs[0] - self.weight) for r in group)
                count += len(group)
        self.weight += 0.1 * total / count
        yield from ()
        return seen
