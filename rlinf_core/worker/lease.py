"""Who may use a device now: turns in the order asked for, and whose memory is there meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from rlinf_core.comm.spans import Span, current
from rlinf_core.errors import RlinfError
from rlinf_core.worker.failures import raised

if TYPE_CHECKING:
    from rlinf_core.worker.worker import Worker

Holder = TypeVar("Holder", bound=Hashable)
_DEVICE = 0  # a process has one


class LeaseBook(Generic[Holder]):
    """Devices and who holds them; holders are processes or whatever else takes turns.

    A request gets all of its devices at once or waits, so nobody holds one device while waiting for
    another. A request never overtakes an earlier one that wants one of the same devices, so everybody
    gets their turn. The book only keeps the order: who is told of a grant, and how, is the caller's.

        book.request("sim[0]", (0, 1))  # True: granted
        book.request("actor[0]", (1,))  # False: waits
        book.release("sim[0]")          # ["actor[0]"]: granted by this
    """

    def __init__(self) -> None:
        self._held: dict[Holder, frozenset[int]] = {}
        self._waiting: dict[Holder, frozenset[int]] = {}

    def request(self, holder: Holder, devices: Iterable[int]) -> bool:
        """Ask for devices; whether they are granted now. Raises `RlinfError` for a second request."""
        if holder in self._held or holder in self._waiting:
            state = "holds" if holder in self._held else "waits for"
            raise RlinfError(f"{holder} {state} devices already; it must release them before it asks again")
        self._waiting[holder] = frozenset(devices)
        return holder in self._grant()

    def release(self, holder: Holder) -> list[Holder]:
        """Give devices back; returns who is granted theirs by this."""
        if holder not in self._held:
            raise RlinfError(
                f"{holder} holds no device; holders: {', '.join(map(str, self._held)) or 'none'}"
            )
        return self.drop(holder)

    def drop(self, holder: Holder) -> list[Holder]:
        """The holder is gone, wherever it stood; returns who is granted theirs by this."""
        self._held.pop(holder, None)
        self._waiting.pop(holder, None)
        return self._grant()

    def holders(self) -> Mapping[Holder, frozenset[int]]:
        """Who holds what now."""
        return dict(self._held)

    def _grant(self) -> list[Holder]:
        taken = frozenset[int]().union(*self._held.values())
        granted = []
        for holder, devices in list(self._waiting.items()):
            if not devices & taken:
                self._held[holder] = self._waiting.pop(holder)
                granted.append(holder)
            taken |= devices  # also those of one that still waits: nobody overtakes it
        return granted


class Holding:
    """A turn on the device for one worker, and for those it works with."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.granted: threading.Event | None = None  # there while it waits

    def __str__(self) -> str:
        return ", ".join(self.names)


class DeviceLease:
    """The turns of one process's workers on its device.

    Workers are resident unless `lend` was called for them: their memory stays on the device. Of the
    others only those whose turn it is are there; the rest wait in host memory. Resident workers leave
    the others where they are. Turns are queued for as soon as one worker is not resident.
    """

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = workers
        self._lent: set[str] = set()
        self._loaded: set[str] = set()  # of those, with memory on the device
        self._book: LeaseBook[Holding] = LeaseBook()
        self._lock = threading.Lock()
        self._now: Holding | None = None

    def lend(self, name: str) -> None:
        """From now on the worker is on the device in its turns only; it may not be built yet."""
        self._lent.add(name)
        self._loaded.add(name)

    def keep(self, name: str) -> None:
        """From now on the worker stays on the device."""
        if name in self._lent:
            self._load(name)
            self._lent.discard(name)
            self._loaded.discard(name)

    def forget(self, name: str) -> None:
        """The worker is gone."""
        self._lent.discard(name)
        self._loaded.discard(name)

    def acquire(self, holding: Holding) -> None:
        """Wait for the turn, then bring its workers onto the device and the others off it. Raises
        `WorkerError` where one cannot be moved; then the turn is over."""
        try:
            if self._lent:
                self._queue(holding)
            self._now = holding
            self._bring(holding.names)
        except BaseException:
            self.release(holding)
            raise

    def release(self, holding: Holding) -> None:
        """The next in line may go on. Nothing is moved before somebody else needs the room. No effect
        where the turn is over already."""
        if self._now is holding:
            self._now = None
        with self._lock:
            for following in self._book.drop(holding):
                if following.granted is not None:
                    following.granted.set()

    @contextmanager
    def turn(self, *names: str) -> Iterator[Holding]:
        """A turn for the block."""
        holding = Holding(*names)
        self.acquire(holding)
        try:
            yield holding
        finally:
            self.release(holding)

    @contextmanager
    def joined(self, *names: str) -> Iterator[None]:
        """Within the running turn these workers are on the device too."""
        holding = self._now if self._now is not None else Holding()
        holding.names += names
        try:
            for name in names:
                self._load(name)
            yield
        finally:
            for name in names:
                holding.names.remove(name)

    def _queue(self, holding: Holding) -> None:
        with self._lock:
            holding.granted = None if self._book.request(holding, (_DEVICE,)) else threading.Event()
        if holding.granted is not None:
            holding.granted.wait()

    def _bring(self, names: list[str]) -> None:
        wanted = [name for name in names if name in self._lent]
        if wanted:
            for other in sorted(self._loaded.difference(wanted)):
                self._move(other, "offload")
                self._loaded.discard(other)
        for name in wanted:
            self._load(name)

    def _load(self, name: str) -> None:
        if name in self._lent and name not in self._loaded:
            self._move(name, "onload")
            self._loaded.add(name)

    def _move(self, name: str, how: str) -> None:
        start = time.monotonic()
        try:
            getattr(self._workers[name], how)()
        except Exception as error:
            raise raised(error, name, how) from error
        log = current()
        if log is not None:
            log.spans.append(Span(name, how, "load", start, time.monotonic()))
