"""All ways to give the members of a cycle devices of their own, as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlinf_core.schedule.choices import Option, Priced, Seat
from rlinf_core.schedule.frontier import APART, Floats, Ints, Mask
from rlinf_core.schedule.graph import Component
from rlinf_core.schedule.options import STAGES, Options
from rlinf_core.schedule.table import Table, Wanted


@dataclass(frozen=True)
class _Places:
    """One member's seats and what it does there: seconds by number of groups, and memory."""

    seats: list[Seat]
    seconds: Floats  # [stages, n]
    ranks: Ints
    use: Ints  # [n, types]
    held: Floats  # [resident or not, n, (switch, kept, loaded)]

    def take(self, rows: Mask) -> _Places:
        return _Places(
            [self.seats[row] for row in np.flatnonzero(rows)],
            self.seconds[:, rows],
            self.ranks[rows],
            self.use[rows],
            self.held[:, rows],
        )


class _Pairs(Sequence[Priced]):
    """Options by the rows of the members' seats, made when asked for."""

    def __init__(
        self, number: int, places: list[_Places], rows: Ints, costs: Floats, stages: Ints, leaving: Ints
    ) -> None:
        self._number = number
        self._places = places
        self._rows = rows  # [n, members]
        self._costs = costs  # [n, (late, switch, kept, loaded)]
        self._stages = stages
        self._leaving = leaving  # [n, members]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Priced:  # type: ignore[override]  # no slices
        rows = self._rows[place]
        seats = tuple(part.seats[int(row)] for part, row in zip(self._places, rows, strict=True))
        resident = tuple(not leaves for leaves in self._leaving[place])
        late, switch, kept, loaded = self._costs[place]
        option = Option(self._number, seats, 0, resident, int(self._stages[place]))
        return Priced(option, 0.0, float(late), float(switch), int(kept), int(loaded))


class Apart:
    """The options of one cycle whose members sit apart."""

    def __init__(self, options: Options, number: int) -> None:
        self._options = options
        self._number = number
        members = options.blocks.blocks[number].members
        self._members = [self._places(member) for member in members]

    def table(self, limit: float, wanted: Wanted | None) -> Table:
        """Those not slower than the limit, each with its best number of groups."""
        places = [self._narrowed(which, limit, wanted) for which in range(len(self._members))]
        shape = [len(part.seats) for part in places]
        rows = np.indices(shape).reshape(len(shape), -1)
        cluster = self._options.cost.cluster
        use = np.sum([part.use[row] for part, row in zip(places, rows, strict=True)], axis=0)
        fits = (use <= [self._options.cost.count(kind) for kind in cluster.types]).all(axis=1)
        rows, use = rows[:, fits], use[fits]
        late, stages = self._staged(places, rows)
        fast = late <= limit
        return _table(self._number, places, rows[:, fast], use[fast], late[fast], stages[fast])

    def _places(self, member: Component) -> _Places:
        options, types = self._options, self._options.cost.cluster.types
        block = options.blocks.blocks[self._number]
        seats = options.seats(self._number, member)
        seconds = [[options.party_s(block, member, seat, stages) for seat in seats] for stages in STAGES]
        ways = [
            [options.held(block, member, seat, stays) for seat in seats] for (stays,) in options.residency(1)
        ]
        use = [[seat.devices if seat.device_type == kind else 0 for kind in types] for seat in seats]
        return _Places(
            seats,
            np.array(seconds, dtype=np.float64).reshape(len(STAGES), len(seats)),
            np.array([seat.ranks for seat in seats], dtype=np.int64),
            np.array(use, dtype=np.int64).reshape(len(seats), len(types)),
            np.array(ways, dtype=np.float64).reshape(len(ways), len(seats), 3),
        )

    def _narrowed(self, which: int, limit: float, wanted: Wanted | None) -> _Places:
        found = self._members[which]
        rows = np.asarray(found.seconds.min(axis=0) <= limit)
        if wanted is not None:
            seats = wanted.seats[which : which + 1] if len(wanted.seats) > 1 else wanted.seats
            rows &= replace(wanted, seats=seats).rows(found.use, self._options.cost.cluster.types)
        return found.take(rows)

    def _staged(self, places: list[_Places], rows: Ints) -> tuple[Floats, Ints]:
        """The least seconds over numbers of groups, and those numbers."""
        ranks = np.max([part.ranks[row] for part, row in zip(places, rows, strict=True)], axis=0)
        least = np.ceil(self._options.samples / ranks)
        late, best = np.full(rows.shape[1], np.inf), np.ones(rows.shape[1], dtype=np.int64)
        for place, stages in enumerate(STAGES):
            each = [part.seconds[place][row] for part, row in zip(places, rows, strict=True)]
            total = np.where(stages <= least, self._options.turns_s(each, stages), np.inf)
            best = np.where(total < late, stages, best)
            late = np.minimum(late, total)
        return late, best


def _table(number: int, places: list[_Places], rows: Ints, use: Ints, late: Floats, stages: Ints) -> Table:
    """With every choice of who stays resident."""
    ways = list(itertools.product(*(range(len(part.held)) for part in places)))
    held = np.concatenate([_held(places, rows, way) for way in ways])
    count, late = len(ways), np.tile(late, len(ways))
    marks = np.repeat(np.array(ways, dtype=np.int64).reshape(count, -1), rows.shape[1], axis=0)
    costs = np.column_stack([late, held])
    priced = _Pairs(number, places, np.tile(rows.T, (count, 1)), costs, np.tile(stages, count), marks)
    return Table(
        priced,
        np.zeros(len(late)),
        late,
        held[:, 0],
        np.zeros(len(late), dtype=bool),
        np.tile(use, (count, 1)),
        held[:, 1:].astype(np.int64),
        np.full(len(late), APART, dtype=np.int64),
    )


def _held(places: list[_Places], rows: Ints, way: tuple[int, ...]) -> Floats:
    """Seconds of switching in all, and memory of the fullest member."""
    held = np.array([part.held[one][row] for part, row, one in zip(places, rows, way, strict=True)])
    return np.column_stack([held[:, :, 0].sum(axis=0), held[:, :, 1:].max(axis=0)])
