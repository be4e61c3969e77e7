"""Where the numbers go: `metrics.jsonl`, `samples.jsonl` and the trackers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rlinf_core.run.output import writing

if TYPE_CHECKING:
    from rlinf_core.api import Tracker


class JsonLines:
    """One JSON object a line, flushed line by line; a resumed run drops the lines it will redo."""

    def __init__(self, path: Path, resumed_step: int | None = None) -> None:
        self.path = path
        if resumed_step is not None and path.exists():
            with writing(self.path):
                self._keep_until(resumed_step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record. Raises `RlinfError` when the disk is full."""
        with writing(self.path), self.path.open("a") as file:
            file.write(json.dumps(record, default=_plain) + "\n")

    def _keep_until(self, step: int) -> None:
        kept = [line for line in self.path.read_text().splitlines() if _step_of(line) <= step]
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in kept))
        draft.replace(self.path)


def jsonable(record: Mapping[str, Any]) -> dict[str, Any]:  # Any: whatever rows hold, and JSON values
    """The record with everything that JSON does not know as numbers, lists or text."""
    plain: dict[str, Any] = json.loads(json.dumps(record, default=_plain))
    return plain


class TrackerSet:
    """Several trackers, each in a thread of its own; one that raises, or that takes longer than `patience_s`
    for one call, is reported once and switched off."""

    def __init__(
        self, trackers: Mapping[str, Tracker], warn: Callable[[str], None], patience_s: float = 120.0
    ) -> None:
        self._desks = {name: _Desk(name, tracker) for name, tracker in trackers.items()}
        self._warn = warn
        self._patience_s = patience_s

    def start(self, output: Path, config: Mapping[str, Any], resumed_step: int) -> None:
        """Before the first step."""
        self._each(lambda tracker: tracker.start(output, config, resumed_step))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """After every step, and after an evaluation before the first one."""
        self._each(lambda tracker: tracker.log(step, metrics))

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:  # Any: JSON values
        """Some rows of a step, as records."""
        self._each(lambda tracker: tracker.log_samples(step, samples))

    def log_picture(self, step: int, name: str, file: Path) -> None:
        """A PNG file."""
        self._each(lambda tracker: tracker.log_picture(step, name, file))

    def log_video(self, step: int, name: str, file: Path) -> None:
        """An MP4 file."""
        self._each(lambda tracker: tracker.log_video(step, name, file))

    def finish(self, error: BaseException | None) -> None:
        """At the end. The threads of trackers that still answer have ended after this."""
        self._each(lambda tracker: tracker.finish(error))
        for desk in self._desks.values():
            desk.close(wait=True)
        self._desks.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """All at once, so that slow ones do not add up."""
        asked = {name: desk.ask(act) for name, desk in self._desks.items()}
        deadline = time.monotonic() + self._patience_s
        for name, answer in asked.items():
            try:
                answer.result(max(0.0, deadline - time.monotonic()))
            except (Exception, SystemExit) as err:
                late = not answer.done()
                cause = f"no answer within {self._patience_s:g} s" if late else str(err) or type(err).__name__
                self._desks.pop(name).close()
                self._warn(f"tracker {name!r} failed and is off for the rest of the run: {cause}")


class _Desk:
    """The thread in which one tracker does everything: what hangs there holds up nobody, also not at the end
    of the process, and signals stay with the run."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._tracker = tracker
        self._asked: SimpleQueue[tuple[Callable[[Tracker], None], Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def ask(self, act: Callable[[Tracker], None]) -> Future[None]:
        answer: Future[None] = Future()
        self._asked.put((act, answer))
        return answer

    def close(self, *, wait: bool = False) -> None:
        self._asked.put(None)
        if wait:
            self._thread.join()

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            act, answer = asked
            try:
                act(self._tracker)
            except BaseException as err:  # raised again where it was asked
                answer.set_exception(err)
            else:
                answer.set_result(None)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return 1 << 62  # a line cut short by a crash


def _plain(value: Any) -> Any:  # Any: numpy values and whatever an answer holds
    return value.tolist() if hasattr(value, "tolist") else str(value)
