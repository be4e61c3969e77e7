"""What a channel has heard from its hub, read by whichever of its threads waits for something."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from rlinf_core.comm.frames import Frame, Say
from rlinf_core.comm.hub_channel import ChannelSettings
from rlinf_core.comm.parcels import Parcels
from rlinf_core.comm.ports import Port
from rlinf_core.errors import WorkerError

Source = tuple[Hashable, Hashable]  # key and consumer


@dataclass(slots=True)
class Unanswered:
    """What was put under a key, and is not known to be taken in."""

    items: int = 0
    weight: float = 0.0
    size: int = 0


class Mailbox:
    """Callers hold `changed` while they look; the one that waits first reads for all."""

    def __init__(self, port: Port, parcels: Parcels, name: str) -> None:
        self.changed = threading.Condition()
        self.settings: ChannelSettings | None = None
        self.refusal: BaseException | None = None
        self.over = False
        self.failure: BaseException | None = None
        self.late_error: BaseException | None = None  # of an item whose `put` did not wait
        self.unanswered: dict[Hashable, Unanswered] = {}
        self.lost = False
        self._name = name
        self._port = port
        self._parcels = parcels
        self._reading = False
        self._waiting: dict[int, Source] = {}
        self._items: dict[int, Frame] = {}
        self._ahead: dict[Source, deque[Frame]] = {}
        self._refusals: dict[int, BaseException | None] = {}
        self._promised: dict[int, tuple[Hashable, float, int]] = {}
        self._answers: dict[int, tuple[bool, BaseException | None]] = {}

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait, and read unless another thread does; False when the time is over."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not ready():
            if self.lost:
                raise WorkerError(f"channel {self._name!r} is gone: the process of its hub has ended")
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._reading:
                self.changed.wait(left)
            else:
                self._read(left)
        return True

    def look(self) -> None:
        """Take in what has come, without waiting."""
        if not self._reading and not self.lost:
            self._read(0.0)

    def expect(self, ticket: int, source: Source) -> None:
        """Somebody asks for an item."""
        self._waiting[ticket] = source

    def has_reply(self, ticket: int) -> bool:
        """Whether there is an item, or none to come."""
        return ticket in self._items or ticket in self._refusals

    def take_reply(self, ticket: int) -> tuple[Frame | None, BaseException | None]:
        """The item or the error; neither where the one who asked has given up."""
        return self._items.pop(ticket, None), self._refusals.pop(ticket, None)

    def give_up(self, ticket: int) -> None:
        """Nobody waits for it any more: an item that comes nevertheless is kept for the next one."""
        source = self._waiting.pop(ticket, None)
        frame = self._items.pop(ticket, None)
        self._refusals.pop(ticket, None)
        if frame is not None and source is not None:
            self._ahead.setdefault(source, deque()).append(frame)

    def take_ahead(self, source: Source) -> Frame | None:
        """An item that was sent before it was asked for."""
        frames = self._ahead.get(source)
        if not frames:
            return None
        frame = frames.popleft()
        if not frames:
            del self._ahead[source]
        return frame

    def promise(self, ticket: int, key: Hashable, weight: float, size: int) -> None:
        """An item is put whose answer nobody waits for."""
        self._promised[ticket] = (key, weight, size)
        unanswered = self.unanswered.setdefault(key, Unanswered())
        unanswered.items += 1
        unanswered.weight += weight
        unanswered.size += size

    def has_answer(self, ticket: int) -> bool:
        """Whether it is known what became of an item."""
        return ticket in self._answers

    def take_answer(self, ticket: int) -> bool:
        """Whether the item was taken in. Raises why not, where that is an error."""
        taken_in, error = self._answers.pop(ticket)
        if error is not None:
            raise error
        return taken_in

    def _read(self, timeout_s: float | None) -> None:
        self._reading = True
        self.changed.release()
        frames: list[Frame] | None = []
        try:
            frames = self._port.receive(timeout_s)
        finally:
            self.changed.acquire()
            self._reading = False
            self.changed.notify_all()
        if frames is None:
            self.lost = True
        for frame in frames or ():
            self._take_in(frame)

    def _take_in(self, frame: Frame) -> None:
        fields = frame.fields
        if frame.say == Say.ITEM:
            self._take_item(frame)
        elif frame.say == Say.ANSWERS:
            for ticket, taken_in, error in fields[0]:
                self._take_in_answer(ticket, taken_in, error)
        elif frame.say == Say.NOTHING:
            if self._waiting.pop(fields[0], None) is not None:
                self._refusals[fields[0]] = fields[1]
        elif frame.say == Say.RELEASE:
            self._parcels.released(fields[0])
        elif frame.say == Say.FORGET:
            self._parcels.forget(fields[0])
        elif frame.say == Say.OVER:
            self.over, self.failure = True, fields[0]
        elif frame.say == Say.WELCOME:
            self.settings = fields[0]
        elif frame.say == Say.REFUSED:
            self.refusal = fields[0]

    def _take_item(self, frame: Frame) -> None:
        ticket, asked, _, source, _ = frame.fields
        self._parcels.learn(frame)
        if asked and self._waiting.pop(ticket, None) is not None:
            self._items[ticket] = frame
        else:
            self._ahead.setdefault(source, deque()).append(frame)

    def _take_in_answer(self, ticket: int, taken_in: bool, error: BaseException | None) -> None:
        promised = self._promised.pop(ticket, None)
        if promised is None:
            self._answers[ticket] = (taken_in, error)
            return
        key, weight, size = promised
        unanswered = self.unanswered[key]
        unanswered.items -= 1
        unanswered.weight -= weight
        unanswered.size -= size
        if not unanswered.items:
            del self.unanswered[key]
        self.late_error = self.late_error or error
