"""Rows in parts that belong together and do not depend on timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlinf_core.comm.stream import Chunk, Stream
from rlinf_core.roles.batching import row_tokens
from rlinf_core.types import Experience


@dataclass(frozen=True)
class GroupOrder:
    """Turns a stream of rows into one of whole groups in the order of their numbers.

    Groups of a step are numbered on from a multiple of `groups_per_step`. A chunk of the new stream
    has at least `chunk` rows (the last may have fewer); with 0 it has all rows, after the last came.
    """

    group_size: int
    groups_per_step: int
    chunk: int = 0

    def __call__(self, stream: Stream) -> Stream:
        """The stream in order."""
        return Stream(self._chunks(stream), result=lambda: stream.result, cancel=stream.cancel)

    def _chunks(self, stream: Stream) -> Iterator[list[Experience]]:
        groups: dict[int, list[Experience]] = {}
        ready: list[Experience] = []
        position = 0
        for rows in stream:
            for row in rows:
                groups.setdefault(row.group % self.groups_per_step, []).append(row)
            while self.chunk and len(groups.get(position, [])) >= self.group_size:
                ready += _sorted(groups.pop(position))
                position += 1
                if len(ready) >= self.chunk:
                    yield ready
                    ready = []
        rest = ready + [row for number in sorted(groups) for row in _sorted(groups[number])]
        if rest:
            yield rest


@dataclass(frozen=True)
class Piece:
    """Which rows of a unit are meant: the share of one of `count` ranks."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class Units:
    """Turns a stream of rows into one of units: so many groups of neighbouring numbers, whole.

    What is in a unit does not depend on timing; the order of the units does: each leaves when its last row
    is there, and waits for no other. One that is long leaves several times, each time with another `Piece`
    after its rows.
    """

    group_size: int
    groups_per_step: int
    groups: int = 1  # of a unit
    tokens: int = 0  # of a piece, about; 0 = units are in one

    def __call__(self, stream: Stream) -> Stream:
        """The stream in units."""
        return Stream(self._chunks(stream), result=lambda: stream.result, cancel=stream.cancel)

    def _chunks(self, stream: Stream) -> Iterator[list[Experience]]:
        units: dict[int, list[Experience]] = {}
        for rows in stream:
            for row in rows:
                number = row.group % self.groups_per_step // self.groups
                unit = units.setdefault(number, [])
                unit.append(row)
                if len(unit) == self._size(number):
                    yield from self._pieces(_sorted(units.pop(number)))
        for number in sorted(units):
            yield from self._pieces(_sorted(units[number]))

    def _pieces(self, rows: list[Experience]) -> Iterator[Chunk]:
        count = min(len(rows), -(-_tokens(rows) // self.tokens)) if self.tokens else 1
        if count == 1:
            yield rows
        else:
            yield from ([*rows, Piece(number, count)] for number in range(count))

    def _size(self, number: int) -> int:
        """Rows of a unit; the last one may have fewer."""
        return self.group_size * min(self.groups, self.groups_per_step - number * self.groups)


def parted(chunk: Chunk) -> tuple[list[Experience], Piece]:
    """A unit's rows, and which of them are meant."""
    return (chunk[:-1], chunk[-1]) if isinstance(chunk[-1], Piece) else (chunk, Piece())


def unit_weight(chunk: Chunk) -> float:
    """Tokens that are meant, about."""
    rows, piece = parted(chunk)
    return _tokens(rows) / piece.count


def _tokens(rows: Sequence[Experience]) -> int:
    return sum(map(row_tokens, rows))


def _sorted(rows: list[Experience]) -> list[Experience]:
    return sorted(rows, key=lambda row: (row.group, row.replica))
