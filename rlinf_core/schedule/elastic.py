"""Which parts of which tensors change hands when a group gets another number of ranks. Plain arithmetic.

Processes are named by numbers that stay theirs, such as their devices: what a process has already does not
move. A part is a box: entries from `offsets` on, `sizes` of them along each axis.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlinf_core.api.resizing import Block, Numbers, Transfer
from rlinf_core.errors import RlinfError

ALIGNED = 64  # bytes, of what a process gives to others
Layout = Mapping[int, Sequence[Block]]  # process -> what it holds


@dataclass(frozen=True)
class Moves:
    """How a layout becomes another one."""

    transfers: tuple[Transfer, ...]  # between two processes
    kept: tuple[Transfer, ...]  # within one

    @property
    def moved_bytes(self) -> int:
        """Of what changes hands."""
        return sum(each.nbytes for each in self.transfers)

    def given_by(self, process: int) -> tuple[Transfer, ...]:
        """What it gives to others."""
        return tuple(each for each in self.transfers if each.source == process)

    def taken_by(self, process: int) -> tuple[Transfer, ...]:
        """What it has afterwards, from others and from itself."""
        return tuple(each for each in (*self.transfers, *self.kept) if each.target == process)


class Box(NamedTuple):
    """A part of a tensor."""

    offsets: Numbers
    sizes: Numbers

    @property
    def entries(self) -> int:
        """Entries."""
        return math.prod(self.sizes)

    def common(self, other: Box) -> Box | None:
        """What both have; None where that is nothing."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        found = Box(offsets, tuple(end - begin for begin, end in zip(offsets, ends, strict=True)))
        return found if all(size > 0 for size in found.sizes) else None

    def without(self, part: Box) -> Iterator[Box]:
        """The rest when a part of it is taken away, as boxes."""
        offsets, sizes = list(self.offsets), list(self.sizes)
        for axis, (begin, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
            before = begin - offsets[axis]
            after = sizes[axis] - before - size
            if before:
                yield Box(tuple(offsets), (*sizes[:axis], before, *sizes[axis + 1 :]))
            if after:
                yield Box(
                    (*offsets[:axis], begin + size, *offsets[axis + 1 :]),
                    (*sizes[:axis], after, *sizes[axis + 1 :]),
                )
            offsets[axis], sizes[axis] = begin, size

    def _ends(self) -> Iterator[int]:
        return (begin + size for begin, size in zip(self.offsets, self.sizes, strict=True))


def plan_moves(before: Layout, after: Layout) -> Moves:
    """Every entry that `after` wants from one process that has it: from itself where it can, else from the
    one that has sent the least so far. Raises `RlinfError` for entries that nobody has."""
    holders: dict[str, list[tuple[int, Block]]] = defaultdict(list)
    for process, blocks in before.items():
        for block in blocks:
            holders[block.name].append((process, block))
    transfers: list[Transfer] = []
    kept: list[Transfer] = []
    sent: Counter[int] = Counter()
    for target, blocks in after.items():
        for block in blocks:
            for transfer in _fetched(block, target, holders[block.name], sent):
                (kept if transfer.source == target else transfers).append(transfer)
    return Moves(tuple(transfers), tuple(kept))


def _fetched(
    block: Block, target: int, holders: Sequence[tuple[int, Block]], sent: Counter[int]
) -> Iterator[Transfer]:
    left = [box for box in [Box(block.offsets, block.sizes)] if box.entries]
    for source, held in sorted(holders, key=lambda each: (each[0] != target, sent[each[0]])):
        if not left:
            return
        if (held.shape, held.dtype) != (block.shape, block.dtype):
            raise RlinfError(
                f"{block.name} is {block.dtype} {block.shape} for process {target}, and {held.dtype} "
                f"{held.shape} for process {source}: they do not train the same model"
            )
        rest: list[Box] = []
        for box in left:
            common = box.common(Box(held.offsets, held.sizes))
            if common is None:
                rest.append(box)
                continue
            nbytes = common.entries * block.itemsize
            begin = sent[source]
            if source != target:
                sent[source] += -(-nbytes // ALIGNED) * ALIGNED
            yield Transfer(
                block.name, block.dtype, source, target, common.offsets, common.sizes, nbytes, begin
            )
            rest += box.without(common)
        left = rest
    if left:
        raise RlinfError(
            f"{block.name}: nobody holds {left[0].entries} entries from {left[0].offsets} on that process "
            f"{target} is to have"
        )
