"""Back-pressure by bytes between a sender and a receiver in two processes."""

from __future__ import annotations

import threading


class Credit:
    """The sender's side: bytes sent and not yet taken.

    Until `bounded`, nothing blocks: a receiver that has not started yet may be waiting for whoever
    sends here, so holding the sender up could stop both for good.
    """

    def __init__(self, limit: int, *, bounded: bool) -> None:
        self.limit = limit
        self._bounded = bounded
        self._outstanding = 0
        self._released = False
        self._changed = threading.Condition()

    @property
    def used_up(self) -> bool:
        """Whether `spend` would wait now."""
        return self._bounded and self._outstanding >= self.limit and not self._released

    def spend(self, size: int) -> bool:
        """Wait until less than the limit is outstanding, then count `size`; False once released."""
        with self._changed:
            while self.used_up:
                self._changed.wait()
            self._outstanding += size
            return not self._released

    def refund(self, size: int) -> None:
        """The receiver has taken this many bytes."""
        with self._changed:
            self._outstanding -= size
            self._changed.notify_all()

    def start_bounding(self) -> None:
        """The receiver takes from now on."""
        with self._changed:
            self._bounded = True

    def release(self) -> None:
        """The receiver has ended: nobody needs to wait any more."""
        with self._changed:
            self._released = True
            self._changed.notify_all()


class Receipts:
    """The receiver's side: adds up what was taken until it is worth a message."""

    def __init__(self, limit: int) -> None:
        self.threshold = max(1, limit // 8)
        self._taken = 0

    def take(self, size: int) -> int:
        """Count `size` as taken; returns how many bytes to report now, mostly 0."""
        self._taken += size
        if self._taken < self.threshold:
            return 0
        report, self._taken = self._taken, 0
        return report
