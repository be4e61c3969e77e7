"""A bounded first-in first-out queue between threads that ends, fails or is abandoned cleanly."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """Items with weights; `put` blocks while the weight inside has reached `capacity`.

    An item heavier than the capacity passes when the channel is below it. After `close` the items
    inside are still delivered, then iteration ends, or raises the error given. `abandon` drops them.
    """

    def __init__(self, capacity: float = float("inf")) -> None:
        self.capacity = capacity
        self._items: deque[tuple[Item, float]] = deque()
        self._filled = 0.0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, item: Item, weight: float = 1.0) -> bool:
        """Add an item; False if nobody will take it any more."""
        with self._changed:
            while self._filled >= self.capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._items.append((item, weight))
            self._filled += weight
            self._changed.notify_all()
            return True

    def close(self, error: BaseException | None = None) -> None:
        """No more items will come. The first close counts."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
                self._changed.notify_all()

    def abandon(self, error: BaseException | None = None) -> None:
        """Close and drop what is inside. No effect on a channel that is closed and empty."""
        with self._changed:
            if self._closed and not self._items:
                return
            self._items.clear()
            self._filled = 0.0
            self._closed, self._error = True, error
            self._changed.notify_all()

    def get(self, timeout_s: float | None = None) -> Item:
        """The next item. Raises the channel's error, `StopIteration` at its end or `TimeoutError`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._items:
                if self._closed:
                    raise self._error if self._error is not None else StopIteration
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._changed.wait(left)
            item, weight = self._items.popleft()
            self._filled -= weight
            self._changed.notify_all()
            return item

    def empty(self) -> bool:
        """Whether nothing is inside."""
        return not self._items

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        return self.get()
