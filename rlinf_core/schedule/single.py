"""All ways to seat one component (with those that follow it), as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_core.schedule.choices import Option, Priced
from rlinf_core.schedule.frontier import Floats, Ints
from rlinf_core.schedule.options import Options
from rlinf_core.schedule.table import Table


class Single:
    """The options of one component."""

    def __init__(self, options: Options, number: int) -> None:
        self._options = options
        self._number = number
        self._block = options.blocks.blocks[number]
        (member,) = self._block.members
        self.resident_ways = options.residency(1)
        self.seats = options.seats(number, member)
        types = options.cost.cluster.types
        use = [[seat.devices if seat.device_type == kind else 0 for kind in types] for seat in self.seats]
        self._use = np.array(use, dtype=np.int64).reshape(len(self.seats), len(types))
        ways = [
            [options.held(self._block, member, seat, stays) for seat in self.seats]
            for (stays,) in self.resident_ways
        ]
        self._held = np.array(ways, dtype=np.float64).reshape(len(ways), len(self.seats), 3)

    def table(self, chunk: int) -> Table:
        """Those with chunks of so many samples (0 = all at once)."""
        (member,) = self._block.members
        rows = np.array(
            [
                row
                for row, seat in enumerate(self.seats)
                if not chunk or self._options.fills(member, seat.ranks, chunk)
            ],
            dtype=np.int64,
        )
        early, late = (
            np.array([self._seconds(names, int(row), chunk) for row in rows], dtype=np.float64)
            for names in ([part.name for part in self._block.early], [part.name for part in self._block.late])
        )
        count = len(self._held)
        priced = Seated(
            self, self._number, chunk, np.tile(rows, count), np.tile(early, count), np.tile(late, count)
        )
        held = self._held[:, rows].reshape(-1, 3)
        return Table(
            priced,
            priced.early,
            priced.late,
            held[:, 0],
            np.full(len(priced), chunk > 0),
            np.tile(self._use[rows], (count, 1)),
            held[:, 1:].astype(np.int64),
            np.zeros(len(priced), dtype=np.int64),
        )

    def held(self, way: int, row: int) -> tuple[float, int, int]:
        """Switching and memory of a seat."""
        switch, kept, loaded = self._held[way, row]
        return float(switch), int(kept), int(loaded)

    def _seconds(self, names: Sequence[str], row: int, chunk: int) -> float:
        return sum(self._options.seconds(name, self.seats[row], chunk) for name in names)


class Seated(Sequence[Priced]):
    """Options by the rows of the seats, made when asked for."""

    def __init__(
        self, single: Single, number: int, chunk: int, rows: Ints, early: Floats, late: Floats
    ) -> None:
        self.early = early
        self.late = late
        self._single = single
        self._number = number
        self._chunk = chunk
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Priced:  # type: ignore[override]  # no slices
        way = place * len(self._single.resident_ways) // len(self._rows)
        row = int(self._rows[place])
        option = Option(
            self._number, (self._single.seats[row],), self._chunk, self._single.resident_ways[way]
        )
        return Priced(option, float(self.early[place]), float(self.late[place]), *self._single.held(way, row))
