"""Channels between processes: the handle that travels, and the channel as a worker uses it."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from rlinf_core.comm.channel import ItemSource
from rlinf_core.comm.frames import Frame, Say, sendable
from rlinf_core.comm.mailbox import Mailbox
from rlinf_core.comm.parcels import Parcels
from rlinf_core.comm.ports import Port, open_port
from rlinf_core.comm.spans import current
from rlinf_core.errors import ChannelClosed, RlinfError, WorkerError

Item = TypeVar("Item")
_CONNECT_S = 30.0
_AHEAD_S = 0.002  # items are sent ahead for about so long
_MOST_AHEAD = 64
_MOST_UNANSWERED = 512  # items of a key
_PROMISED_PART = 8  # a part of the capacity may be on its way while nobody waits for the answer
_NOTED_S = 0.0005  # shorter waits are no idle time worth a span


@dataclass(frozen=True)
class ChannelHandle:
    """Where a channel is: small, and can be sent to any process of this machine, and of others where its
    hub has `elsewhere` to be reached from."""

    address: str
    token: str
    name: str
    elsewhere: str = ""

    def connect(self, worker: str) -> RemoteChannel[Any]:
        """Join the channel as `worker`, the name by which errors call it. Raises `WorkerError`."""
        try:
            port = open_port(self.address, self.token, self.name, worker, self.elsewhere)
            return RemoteChannel(port, self.name, worker)
        except OSError as error:
            raise WorkerError(
                f"{worker} cannot reach channel {self.name!r} ({error}): has the process of its hub ended?",
                worker=worker,
            ) from error


class RemoteChannel(ItemSource[Item]):
    """A channel as one worker sees it: as `Channel`, and items are copied once, on `put`.

    Arrays and CPU tensors of a received item are writable views of shared memory, which the producer uses
    again when the last view is dropped. Leave with `leave` (or a `with` block): a worker that ends without
    it has died, and the channel then fails for everybody with an error that names it.
    """

    def __init__(self, port: Port, name: str, worker: str) -> None:
        self.name = name
        self.worker = worker
        self._port = port
        self._parcels = Parcels(port)
        self._box = Mailbox(port, self._parcels, name)
        self._tickets = itertools.count(1)
        self._done: dict[int, list[int]] = {}  # ids of items that a thread got and is done with
        self._left = False
        self._got_at = -math.inf
        self._pace_s = math.inf  # between gets, lately
        box = self._box
        with box.changed:
            if not box.wait(lambda: box.settings is not None or box.refusal is not None, _CONNECT_S):
                raise WorkerError(f"channel {name!r} has not answered {worker} within {_CONNECT_S:g} s")
        if box.settings is None:
            port.close()
            assert box.refusal is not None
            raise box.refusal
        self.settings = box.settings
        self._parcels.set_limit(self.settings.capacity_bytes)

    def put(
        self,
        item: Item,
        weight: float = 1.0,
        key: Hashable = None,
        *,
        order: int | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """Add an item; waits while its key is full. False if nobody will take it any more.

        Raises `ProducerDied`, `ConsumerDied` or whatever else the channel failed with, and `TimeoutError`.
        Up to an eighth of the capacity may be on its way to the channel when `put` returns.
        """
        if not self._may_put():
            return False
        parcel = self._parcels.wrap(item)
        ticket = next(self._tickets)
        box = self._box
        with box.changed:
            promised = self._may_promise(key, weight, parcel.size)
            if promised:
                box.promise(ticket, key, weight, parcel.size)
        try:
            self._parcels.send(parcel, (ticket, key, weight, order, promised, parcel.size))
        except ConnectionError:  # reading tells why
            promised = False
        return promised or self._answer(ticket, key, timeout_s)

    def get(self, key: Hashable = None, *, consumer: Hashable = None, timeout_s: float | None = None) -> Item:
        """The next item of the key. Raises `ChannelClosed`, what the channel failed with, `TimeoutError`.

        Whoever gets an item is done with the one it got before.
        """
        began = time.monotonic()
        self._pace_s = 0.5 * min(self._pace_s, 1.0) + 0.5 * (began - self._got_at)
        with self._box.changed:
            frame = self._box.take_ahead((key, consumer))
        if frame is None:
            frame = self._ask(key, consumer, timeout_s)
        self._done.setdefault(threading.get_ident(), []).append(frame.fields[2])
        self._got_at = time.monotonic()
        self._note_wait(began, self._got_at)
        item: Item = self._parcels.unwrap(frame)
        return item

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:  # Any: a torch or numpy dtype, and its array
        """An array (or, for a torch dtype, a tensor) with any content, that `put` will not copy.

        Once it was put it belongs to whoever gets it: fill another one for the next item.
        """
        with self._box.changed:
            self._box.look()
        return self._parcels.empty(shape, dtype)

    def finish(self) -> None:
        """This producer has put its last item; the channel closes when all its `producers` have."""
        self._say(Say.FINISH)

    def close(self, error: BaseException | None = None) -> None:
        """No more items will come, from nobody. The first close counts."""
        self._say(Say.CLOSE, sendable(error))

    def abandon(self, error: BaseException | None = None) -> None:
        """Close and drop what is inside. No effect on a channel that is closed and empty."""
        self._say(Say.ABANDON, sendable(error))

    def leave(self) -> None:
        """Goodbye: this worker neither puts nor gets any more. What it got stays readable."""
        if not self._left:
            self._left = True
            self._say(Say.BYE, [number for numbers in self._done.values() for number in numbers])

    def __enter__(self) -> RemoteChannel[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._left:
            self.abandon(error if isinstance(error, Exception) else None)
        self.leave()

    def _may_put(self) -> bool:
        box = self._box
        with box.changed:
            self._check_here()
            box.look()
            if box.late_error is not None:
                raise box.late_error
            if box.failure is not None:
                raise box.failure
            return not box.over

    def _may_promise(self, key: Hashable, weight: float, size: int) -> bool:
        """Whether `put` may return before the hub has answered."""
        waiting = self._box.unanswered.get(key)
        items, weights, sizes = (waiting.items, waiting.weight, waiting.size) if waiting else (0, 0.0, 0)
        return (
            items < _MOST_UNANSWERED
            and weights + weight <= self.settings.capacity / _PROMISED_PART
            and sizes + size <= self.settings.capacity_bytes / _PROMISED_PART
        )

    def _answer(self, ticket: int, key: Hashable, timeout_s: float | None) -> bool:
        box = self._box
        began = time.monotonic()
        with box.changed:
            late = not box.wait(lambda: box.has_answer(ticket) or self._has_ended(), timeout_s)
            if late:
                self._say(Say.RECALL, ticket)
                box.wait(lambda: box.has_answer(ticket) or self._has_ended())
            self._note_wait(began, time.monotonic())
            taken_in = box.has_answer(ticket) and box.take_answer(ticket)
            if box.failure is not None:
                raise box.failure
        if late and not taken_in:
            raise TimeoutError(f"{self._title(key)} had no room within {timeout_s:g} s")
        return taken_in

    def _ask(self, key: Hashable, consumer: Hashable, timeout_s: float | None) -> Frame:
        box = self._box
        ticket = next(self._tickets)
        with box.changed:
            self._check_here()
            box.expect(ticket, (key, consumer))
            try:
                done = self._done.pop(threading.get_ident(), [])
                self._say(Say.ASK, ticket, key, consumer, self._most_ahead(consumer), done)
                if not box.wait(lambda: box.has_reply(ticket) or self._has_ended(), timeout_s):
                    self._say(Say.WITHDRAW, ticket)
                    box.wait(lambda: box.has_reply(ticket) or self._has_ended())
                frame, error = box.take_reply(ticket)
                if frame is None and error is None and self._has_ended():
                    error = box.failure or ChannelClosed(f"channel {self.name!r} is closed")
            finally:
                box.give_up(ticket)
        if frame is not None:
            return frame
        raise error or TimeoutError(f"nothing came through {self._title(key)} within {timeout_s:g} s")

    def _most_ahead(self, consumer: Hashable) -> int:
        """How many items may come with the next one, so that none of them waits here for long."""
        steady = self.settings.consumers > 0 or consumer is None
        if self.settings.redeliver or not steady:
            return 1
        return max(1, min(_MOST_AHEAD, int(_AHEAD_S / max(self._pace_s, 1e-6))))

    def _say(self, say: Say, *fields: Any) -> None:
        try:
            self._port.send(say, fields)
        except OSError:  # the hub is gone; whoever waits for an answer reads why
            return

    def _has_ended(self) -> bool:
        """Whether the hub was closed in order, and will not answer any more."""
        return self._box.lost and self._box.over

    def _check_here(self) -> None:
        if self._left:
            raise RlinfError(f"{self.worker} has left channel {self.name!r}: connect again to use it")

    def _note_wait(self, began: float, ended: float) -> None:
        log = current()
        if log is not None and ended - began >= _NOTED_S:
            log.add("wait", began, ended)

    def _title(self, key: Hashable) -> str:
        name = f"channel {self.name!r}"
        return name if key is None else f"key {key!r} of {name}"
