"""Items and their shared memory as they lie in the hub, which passes them on and never looks into them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol


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

    def let_go(self) -> None:
        """Nobody will be given this item (again)."""
        places, self.places = self.places, []
        for segment, _, _ in places:
            segment.let_go()
