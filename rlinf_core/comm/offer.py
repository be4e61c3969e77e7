"""What people want of a channel: to put an item, or to get one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = Hashable


@dataclass(slots=True, eq=False)
class Offer(Generic[Item]):
    """An item that somebody wants to put. `promised`: its producer does not wait for the answer."""

    item: Item
    weight: float = 1.0
    size: int = 0
    key: Key = None
    order: int | None = None
    promised: bool = False
    taken_in: bool | None = None  # None while it waits for room
    error: BaseException | None = None  # why it was refused, where that is an error

    def settle(self, taken_in: bool, error: BaseException | None = None) -> None:
        """It has its place in the queue, or will never have one."""
        self.taken_in, self.error = taken_in, error

    @property
    def settled(self) -> bool:
        """Whether the answer is there."""
        return self.taken_in is not None


@dataclass(slots=True, eq=False)
class Request(Generic[Item]):
    """Somebody's wish for the next item of a key."""

    key: Key = None
    consumer: Hashable = None
    offer: Offer[Item] | None = None
    error: BaseException | None = None

    def give(self, offer: Offer[Item]) -> None:
        """This is the item."""
        self.offer = offer

    def refuse(self, error: BaseException) -> None:
        """There will be no item."""
        self.error = error

    @property
    def settled(self) -> bool:
        """Whether there is an item or an error."""
        return self.offer is not None or self.error is not None
