"""Saves a run's checkpoints, one at a time, while the run goes on."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import CheckpointError
from rlinf_core.roles.saving import WRITE_S

if TYPE_CHECKING:
    from rlinf_core.run.checkpoint import CheckpointStore
    from rlinf_core.run.crew import Crew

LISTING = ".part-"
_LOOK_S = 0.02  # how often the disk is looked at while workers write
_LATE_S = 10.0  # after which files on disks of other machines are seen here


@dataclass
class Save:
    """A checkpoint that is being written: `state` is stored beside what the workers write."""

    step: int
    draft: Path
    state: Mapping[str, Any]  # Any: JSON values
    listings: Sequence[Path]  # of the workers, which come to be when their files are durable


class Saving:
    """The checkpoints of one run; `told` hears of each one that is whole.

    A save takes a copy of the state, which training waits for. What follows needs nobody: the workers write
    by threads of theirs, and a thread here makes the checkpoint the latest once all are done. Errors are
    raised by the next call.
    """

    def __init__(
        self, store: CheckpointStore, crew: Crew, *, background: bool, told: Callable[[int, Path], None]
    ) -> None:
        self.store = store
        self.crew = crew
        self.background = background
        self._told = told
        self._open: Save | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()  # nobody writes any more
        self._patience_s = _LATE_S
        self._error: BaseException | None = None
        self._path: Path | None = None  # where it lies when it is whole

    @property
    def last_step(self) -> int | None:
        """Of the newest checkpoint, which may be one that is still being written."""
        return self.store.latest_step() if self._open is None else self._open.step

    def save(self, step: int, state: Mapping[str, Any], write: Callable[[Path], None] | None = None) -> None:
        """Save what the run is now; `write` puts files of the run's own into the checkpoint's folder. Raises
        `CheckpointError`."""
        self.finish()
        try:
            staged = self.crew.stage_save(background=self.background)
            size = sum(part.size for parts in staged.values() for part in parts)
            draft = self.store.draft(step, size)
            if write is not None:
                write(draft)
            listings = self.crew.write_save(draft, LISTING)
        except BaseException as err:
            self.store.drop(step)
            self._raise(step, err)
        algorithm = staged["actor"][0].algorithm
        self._open = Save(step, draft, {"algorithm": algorithm, **state}, listings)
        self._end, self._error, self._path = threading.Event(), None, None
        self._thread = threading.Thread(target=self._commit, args=(self._open,), name="commit", daemon=True)
        self._thread.start()
        if not self.background:
            self.finish()

    def check(self) -> None:
        """Raise what the save that is under way has failed by, if it has; tell of it if it is whole."""
        if self._thread is not None and not self._thread.is_alive():
            self.finish()
        elif self._open is not None:
            self._guarded(self.crew.check_save)

    def finish(self) -> None:
        """Wait for the save that is under way. Raises `CheckpointError`."""
        if self._open is None:
            return
        self._guarded(self.crew.finish_save)
        self._stop_waiting(_LATE_S)
        step, self._open, self._thread = self._open.step, None, None
        if self._error is not None:
            self.store.drop(step)
            self._raise(step, self._error)
        if self._path is not None:
            self._told(step, self._path)

    def abandon(self) -> BaseException | None:
        """The workers have ended: what they wrote completely becomes a checkpoint, all else is removed.
        Returns why it did not, where that is not for want of what they had to write."""
        if self._open is None:
            return None
        self._stop_waiting(0.0)
        if self._path is None:
            self.store.drop(self._open.step)
        self._open = self._thread = None
        return None if isinstance(self._error, _UnfinishedError) else self._error

    def _guarded(self, ask: Callable[[], None]) -> None:
        if self._open is None:
            return
        try:
            ask()
        except BaseException as err:
            step = self._open.step
            self.abandon()
            self._raise(step, err)

    def _stop_waiting(self, patience_s: float) -> None:
        """All that will be written is there, or will be seen within so many seconds."""
        self._patience_s = patience_s
        self._end.set()
        if self._thread is not None:
            self._thread.join(WRITE_S)
            if self._thread.is_alive():
                self._error = CheckpointError(f"it was not made durable within {WRITE_S:.0f} s")

    def _await(self, listings: Sequence[Path]) -> None:
        until = math.inf
        while True:
            over = self._end.is_set()  # before the disk is looked at
            missing = [path for path in listings if not path.exists()]
            if not missing:
                return
            if not over:
                self._end.wait(_LOOK_S)
                continue
            until = min(until, time.monotonic() + self._patience_s)
            if time.monotonic() >= until:
                raise _UnfinishedError(f"{missing[0].name} was not written")
            time.sleep(_LOOK_S)

    def _commit(self, save: Save) -> None:
        try:
            self._await(save.listings)
            known: dict[str, Any] = {}
            for path in save.listings:
                known |= json.loads(path.read_text())
                path.unlink()
            self._path = self.store.commit(save.step, save.draft, save.state, known)
        except BaseException as err:  # the border of a thread: the run's next call raises it
            self._error = err

    def _raise(self, step: int, err: BaseException) -> None:
        failure = self.store.failure(step, err)
        if failure is err:
            raise err
        raise failure from err


def score(metric: str, metrics: Mapping[str, float]) -> float | None:
    """How good a checkpoint is by `checkpoint.keep_best`; None where its step has no such metric."""
    value = metrics.get(metric.removeprefix("-"))
    return -value if value is not None and metric.startswith("-") else value


class _UnfinishedError(CheckpointError):
    """The workers ended before all was written."""
