"""A bounded queue between threads, with keys, order and balance, that ends, fails or is abandoned cleanly."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from rlinf_core.comm.exchange import Exchange
from rlinf_core.comm.offer import Offer, Request
from rlinf_core.errors import ChannelClosed

Item = TypeVar("Item")


class ItemSource(ABC, Generic[Item]):
    """Whatever items are taken from one by one; iterating over it ends where the channel does."""

    @abstractmethod
    def get(self, key: Hashable = None, *, consumer: Hashable = None, timeout_s: float | None = None) -> Item:
        """The next item of the key. Raises `ChannelClosed`, the channel's error or `TimeoutError`."""

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        try:
            return self.get()
        except ChannelClosed:
            raise StopIteration from None


class Channel(ItemSource[Item]):
    """Items with weights; `put` blocks while the weight inside has reached `capacity`.

    Every key is a queue of its own: the capacity counts per key, and a full key never holds up another.
    An item heavier than the capacity passes when its key is below it. After `close` the items inside are
    still delivered, then `get` raises `ChannelClosed` (iteration ends), or the error given. `abandon`
    drops them.

    `ordered`: each `put` numbers its item (`order=0, 1, 2, ...`, per key), and items come strictly in
    that order whoever put them when. `heaviest`: of the items that wait, the heaviest goes first.
    `consumers=n`: each item belongs to the consumer, of 0 to n-1, with the least total weight so far,
    whatever the timing; without it, an item goes to the least loaded of those that wait in
    `get(consumer=...)` at that moment. `producers=n`: the channel closes when `finish` was called so many
    times.
    """

    def __init__(
        self,
        capacity: float = float("inf"),
        *,
        ordered: bool = False,
        heaviest: bool = False,
        consumers: int = 0,
        producers: int = 1,
        name: str = "channel",
    ) -> None:
        self._exchange: Exchange[Item] = Exchange(
            name, capacity, ordered=ordered, heaviest=heaviest, consumers=consumers
        )
        self._producers = producers
        self._changed = threading.Condition()

    @property
    def loads(self) -> dict[Hashable, float]:
        """The total weight that each consumer was given so far."""
        with self._changed:
            return dict(self._exchange.loads)

    def put(
        self,
        item: Item,
        weight: float = 1.0,
        key: Hashable = None,
        *,
        order: int | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """Add an item; False if nobody will take it any more. Raises `TimeoutError`."""
        offer = Offer(item, weight, key=key, order=order)
        with self._changed:
            self._exchange.offer(offer)
            self._changed.notify_all()
            if not self._wait(lambda: offer.settled, timeout_s):
                self._exchange.recall(offer)
                raise TimeoutError(f"{self._title(key)} had no room within {timeout_s:g} s")
        if offer.error is not None:
            raise offer.error
        return bool(offer.taken_in)

    def get(self, key: Hashable = None, *, consumer: Hashable = None, timeout_s: float | None = None) -> Item:
        """The next item of the key. Raises `ChannelClosed`, the channel's error or `TimeoutError`."""
        request: Request[Item] = Request(key, consumer)
        with self._changed:
            self._exchange.ask(request)
            self._changed.notify_all()
            if not self._wait(lambda: request.settled, timeout_s):
                self._exchange.withdraw(request)
                raise TimeoutError(f"nothing came through {self._title(key)} within {timeout_s:g} s")
        if request.offer is not None:
            return request.offer.item
        assert request.error is not None
        raise request.error

    def finish(self) -> None:
        """One of the producers has put its last item."""
        with self._changed:
            self._producers -= 1
            if self._producers <= 0:
                self._exchange.close()
                self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """No more items will come. The first close counts."""
        with self._changed:
            self._exchange.close(error)
            self._changed.notify_all()

    def abandon(self, error: BaseException | None = None) -> None:
        """Close and drop what is inside. No effect on a channel that is closed and empty."""
        with self._changed:
            self._exchange.abandon(error)
            self._changed.notify_all()

    def empty(self) -> bool:
        """Whether nothing is inside."""
        with self._changed:
            return self._exchange.is_empty()

    def _wait(self, settled: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait, holding the lock; False when the time is over."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not settled():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._changed.wait(left)
        return True

    def _title(self, key: Hashable) -> str:
        name = f"channel {self._exchange.name!r}"
        return name if key is None else f"key {key!r} of {name}"
