"""Options of one block as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_core.schedule import algebra
from rlinf_core.schedule.frontier import APART, Floats, Frontier, Ints, Mask
from rlinf_core.schedule.options import Priced
from rlinf_core.schedule.tree import Rules


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

    def frontier(self, rules: Rules, number: int, rows: Mask | None = None) -> Frontier:
        """The options (or some rows of them) as ways for their block."""
        waits = bool(rules.blocks.blocks[number].late)
        whole = algebra.leaf(self.early, self.late, waits, 1.0, self.switch)
        chunks = algebra.leaf(self.early, self.late, waits, rules.share, self.switch)
        times = [np.where(self.chunked, part, all_) for part, all_ in zip(chunks, whole, strict=True)]
        seen = rules.seen(1 << number, algebra.Times(*times))
        made = np.zeros((len(self.priced), 3), dtype=np.int64)
        made[:, 0], made[:, 1] = -1, np.arange(len(self.priced))
        found = Frontier(np.column_stack(seen), self.use, self.memory, self.style, made)
        return found if rows is None else found.take(rows)


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
