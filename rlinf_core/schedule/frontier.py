"""Many ways to run one set of blocks, as arrays, without those that another way beats in everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlinf_core.schedule.algebra import Times

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SHARED, APART = 1, 2  # styles: some parts share devices; some do not have the same ones
BLOCK = 256  # rows that are compared with all others at once
AT_ONCE = 4096  # others
LATER = np.triu(np.ones((BLOCK, BLOCK), dtype=bool), 1)


@dataclass(frozen=True)
class Frontier:
    """Rows of ways: four times, devices by type, memory kept and loaded, and how each was made.

    `style` tells ways apart that must not beat each other when one of a certain mode is wanted. `made` is
    (step number or -1, first's row or option number, second's row).
    """

    times: Floats  # [n, 4]
    use: Ints  # [n, types]
    memory: Ints  # [n, 2]
    style: Ints  # [n]
    made: Ints  # [n, 3]

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: Ints | Mask) -> Frontier:
        """Some of the rows."""
        return Frontier(
            self.times[rows], self.use[rows], self.memory[rows], self.style[rows], self.made[rows]
        )

    @property
    def columns(self) -> Times:
        """The times, by column."""
        return Times(*self.times.T)

    def pruned(self, styles: bool = False) -> Frontier:
        """Without ways that another one beats or equals in everything (of the same style, if `styles`)."""
        if len(self) < 2:
            return self
        if not styles:
            return self.take(unbeaten(self._columns()))
        groups = [np.flatnonzero(self.style == style) for style in np.unique(self.style)]
        kept = [rows[unbeaten([column[rows] for column in self._columns()])] for rows in groups]
        return self.take(np.concatenate(kept))

    def _columns(self) -> list[npt.NDArray[np.generic]]:
        return [*self.times.T, *self.use.T, *self.memory.T]


def joined(parts: Sequence[Frontier]) -> Frontier:
    """All rows of several."""
    return Frontier(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.use for part in parts]),
        np.concatenate([part.memory for part in parts]),
        np.concatenate([part.style for part in parts]),
        np.concatenate([part.made for part in parts]),
    )


def unbeaten(columns: Sequence[npt.NDArray[np.generic]]) -> Ints:
    """Rows that no other row equals or beats in every column; of equal rows the first."""
    values = _telling(columns)
    if not len(values):
        return np.arange(min(len(columns[0]), 1))
    order: Ints = np.lexsort(values[::-1])
    ranked = values[:, order]
    if len(ranked) == 1:
        order = order[:1]
        return order
    if len(ranked) == 2:
        least = np.minimum.accumulate(ranked[1])
        fresh: Mask = np.concatenate([[True], ranked[1, 1:] < least[:-1]])
        return order[fresh]
    return order[_unbeaten_sorted(ranked)]


def _telling(columns: Sequence[npt.NDArray[np.generic]]) -> Floats:
    """Columns in which rows differ, and not as in one before."""
    values = np.array(columns, dtype=np.float64)  # [columns, n]
    telling = (values != values[:, :1]).any(axis=1)
    if len(columns[0]) > BLOCK:
        telling &= [
            not any(np.array_equal(row, one) for one in values[:place]) for place, row in enumerate(values)
        ]
    found: Floats = values[telling]
    return found


def _unbeaten_sorted(ranked: Floats) -> Ints:
    """As above for rows in lexical order: a row can only be beaten by one before it."""
    alive = np.arange(ranked.shape[1])
    kept: list[Ints] = []
    while len(alive):
        block, alive = alive[:BLOCK], alive[BLOCK:]
        rows = ranked[:, block]
        beaten = (_beats(rows, rows) & LATER[: len(block), : len(block)]).any(axis=0)
        block, rows = block[~beaten], rows[:, ~beaten]
        kept.append(block)
        if not len(alive):
            break
        alive = alive[~_beaten_by(rows, ranked[:, alive])]
    return np.concatenate(kept)


def _beaten_by(rows: Floats, others: Floats) -> Mask:
    """Which of the others one of the rows beats or equals in every column."""
    strongest = rows[:, rows.sum(axis=0).argsort()[:8]]
    beaten = np.asarray(_beats(strongest, others).any(axis=0))
    left = np.flatnonzero(~beaten)
    for start in range(0, len(left), AT_ONCE):
        part = left[start : start + AT_ONCE]
        beaten[part] = _beats(rows, others[:, part]).any(axis=0)
    return beaten


def _beats(rows: Floats, others: Floats) -> Mask:
    """For every row and every other one, whether it beats or equals it in every column."""
    found: Mask = rows[0, :, None] <= others[0][None]
    for row, other in zip(rows[1:], others[1:], strict=True):
        found &= row[:, None] <= other[None]
    return found
