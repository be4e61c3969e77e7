"""Items and their shared memory as they lie in the hub, which passes them on and never looks into them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

INLINE = 0  # instead of a segment's number: the piece lies in the frame's body
_ALIGN = 64


class Neighbour(Protocol):
    """A member, as far as its segments concern it."""

    def unused(self, segment: HubSegment) -> None:
        """Nobody looks at its segment any more."""

    def forget_own(self, segment: HubSegment) -> None:
        """Its segment is gone."""

    def forget(self, segment: HubSegment) -> None:
        """A segment that it has mapped will not be used again."""


@dataclass(slots=True, eq=False)
class HubSegment:
    """A segment of a member, by whose descriptor it is passed on. Never mapped here."""

    number: int  # here
    owner: Neighbour | None  # None once it is gone
    own_number: int  # there
    capacity: int
    once: bool
    descriptor: int
    holders: int = 0
    puts: int = 0  # messages in it of which its owner does not know that they are done with
    knowers: set[Neighbour] = field(default_factory=set)  # who has its descriptor

    def let_go(self) -> None:
        """One holder less."""
        self.holders -= 1
        if self.holders:
            return
        if self.owner is not None:
            self.owner.unused(self)
        if self.once or self.owner is None:
            self.destroy()

    def orphan(self) -> None:
        """Its owner is gone: it lives as long as somebody holds it."""
        self.owner = None
        if not self.holders:
            self.destroy()

    def destroy(self) -> None:
        """Nobody will use it again."""
        os.close(self.descriptor)
        if self.owner is not None:
            self.owner.forget_own(self)
        for knower in self.knowers:
            knower.forget(self)
        self.knowers.clear()


@dataclass(slots=True, eq=False)
class Payload:
    """An item: its body, or where that lies, and what lies elsewhere."""

    parts: int
    body: bytearray
    in_segment: bool
    places: list[tuple[HubSegment, int, int]]  # segment, begin, size

    def inline(self) -> tuple[list[bytes], list[tuple[int, int, int, int, bool]]]:
        """What lies in shared memory as bytes, each with a few more so that the next one is aligned, and
        references to it, which count from the begin of the frame's body."""
        pieces, refs = [], []
        at = len(self.body)
        for segment, begin, size in self.places:
            piece = read_at(segment.descriptor, begin, size).ljust(-(-size // _ALIGN) * _ALIGN, b"\0")
            refs.append((INLINE, 0, at, size, False))
            pieces.append(piece)
            at += len(piece)
        return pieces, refs

    def let_go(self) -> None:
        """Nobody will be given this item (again)."""
        places, self.places = self.places, []
        for segment, _, _ in places:
            segment.let_go()


def read_at(descriptor: int, begin: int, size: int) -> bytes:
    """So many bytes of a file. One system call reads 2 GiB at most."""
    pieces = []
    while size:
        pieces.append(os.pread(descriptor, size, begin))
        begin += len(pieces[-1])
        size -= len(pieces[-1])
    return b"".join(pieces)
