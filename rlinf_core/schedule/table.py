"""Options of one block as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule import algebra
from rlinf_core.schedule.choices import Priced, Seat
from rlinf_core.schedule.frontier import APART, Floats, Frontier, Ints, Mask, unbeaten
from rlinf_core.schedule.tree import Rules

COARSE = 1.3  # between numbers of devices in a selection
NEAR = 1.3  # around chosen ones


@dataclass(frozen=True)
class Wanted:
    """A selection of options: a few numbers of devices, and all those near the seats given."""

    seats: tuple[Seat, ...] = ()
    ratio: float = COARSE

    def rows(self, use: Ints, types: Sequence[str]) -> Mask:
        """Which options it has."""
        chosen = self.counts(use.sum(axis=1))
        for seat in self.seats:
            place = types.index(seat.device_type)
            chosen |= (use[:, place] >= seat.devices / NEAR) & (use[:, place] <= seat.devices * NEAR)
        return chosen

    def counts(self, counts: Ints) -> Mask:
        """Which numbers are the first in their step of a geometric series, or the largest."""
        steps = np.floor(np.log(counts) / math.log(self.ratio))
        before = np.floor(np.log(np.maximum(counts - 1, 0.5)) / math.log(self.ratio))
        return np.asarray((steps != before) | (counts == counts.max(initial=0)))


class _Chosen(Sequence[Priced]):
    """Some rows of a sequence, looked up when asked for."""

    def __init__(self, whole: Sequence[Priced], places: Ints) -> None:
        self._whole = whole
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: int) -> Priced:  # type: ignore[override]  # no slices
        return self._whole[int(self._places[place])]


class _Joined(Sequence[Priced]):
    """One sequence after another."""

    def __init__(self, first: Sequence[Priced], second: Sequence[Priced]) -> None:
        self._first = first
        self._second = second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __getitem__(self, place: int) -> Priced:  # type: ignore[override]  # no slices
        beyond = place - len(self._first)
        return self._first[place] if beyond < 0 else self._second[beyond]


@dataclass(frozen=True)
class Table:
    """Options and, row by row, what they cost."""

    priced: Sequence[Priced]
    early: Floats
    late: Floats
    switch: Floats
    chunked: Mask
    use: Ints  # [n, types]
    memory: Ints  # [n, 2]
    style: Ints

    def in_chunks(self, limit: float) -> bool:
        """Whether any row within so many seconds gives or takes samples in chunks."""
        return bool((self.chunked & (self.early + self.late + self.switch <= limit)).any())

    def take(self, rows: Ints) -> Table:
        """Some of the rows."""
        return Table(
            _Chosen(self.priced, rows),
            self.early[rows],
            self.late[rows],
            self.switch[rows],
            self.chunked[rows],
            self.use[rows],
            self.memory[rows],
            self.style[rows],
        )

    def frontier(self, rules: Rules, number: int) -> Frontier:
        """The options as ways for their block."""
        waits = bool(rules.blocks.blocks[number].late)
        whole = algebra.leaf(self.early, self.late, waits, 1.0, self.switch)
        chunks = algebra.leaf(self.early, self.late, waits, rules.share, self.switch)
        times = [np.where(self.chunked, part, all_) for part, all_ in zip(chunks, whole, strict=True)]
        seen = rules.seen(1 << number, algebra.Times(*times))
        made = np.zeros((len(self.priced), 3), dtype=np.int64)
        made[:, 0], made[:, 1] = -1, np.arange(len(self.priced))
        return Frontier(np.column_stack(seen), self.use, self.memory, self.style, made)


def lean(found: Table) -> Table:
    """Without rows that another one beats in everything; all are of the same chunk."""
    columns = [found.early, found.late, found.switch, *found.use.T, *found.memory.T]
    return found.take(unbeaten(columns))


def table(priced: Sequence[Priced], types: Sequence[str]) -> Table:
    """The arrays of some options."""
    use = np.zeros((len(priced), len(types)), dtype=np.int64)
    for place, kind in enumerate(types):
        use[:, place] = [
            sum(seat.devices for seat in one.option.seats if seat.device_type == kind) for one in priced
        ]
    return Table(
        priced,
        np.array([one.early for one in priced], dtype=np.float64),
        np.array([one.late for one in priced], dtype=np.float64),
        np.array([one.switch for one in priced], dtype=np.float64),
        np.array([one.option.chunk > 0 for one in priced], dtype=bool),
        use,
        np.array([(one.kept, one.loaded) for one in priced], dtype=np.int64).reshape(len(priced), 2),
        np.array([APART if len(one.option.seats) > 1 else 0 for one in priced], dtype=np.int64),
    )


def both(first: Table, second: Table) -> Table:
    """All rows of two."""
    return Table(
        _Joined(first.priced, second.priced),
        np.concatenate([first.early, second.early]),
        np.concatenate([first.late, second.late]),
        np.concatenate([first.switch, second.switch]),
        np.concatenate([first.chunked, second.chunked]),
        np.concatenate([first.use, second.use]),
        np.concatenate([first.memory, second.memory]),
        np.concatenate([first.style, second.style]),
    )
