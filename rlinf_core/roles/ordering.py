"""Rows in parts that belong together and do not depend on timing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlinf_core.comm.stream import Stream
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
class Units:
    """Turns a stream of rows into one of units: so many groups of neighbouring numbers, whole.

    What is in a unit does not depend on timing; the order of the units does: each leaves when its last row
    is there, and waits for no other.
    """

    group_size: int
    groups_per_step: int
    groups: int = 1  # of a unit

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
                    yield _sorted(units.pop(number))
        for number in sorted(units):
            yield _sorted(units[number])

    def _size(self, number: int) -> int:
        """Rows of a unit; the last one may have fewer."""
        return self.group_size * min(self.groups, self.groups_per_step - number * self.groups)


def _sorted(rows: list[Experience]) -> list[Experience]:
    return sorted(rows, key=lambda row: (row.group, row.replica))
