"""Where the numbers go: `metrics.jsonl`, `samples.jsonl` and the trackers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
    """Several trackers; one that raises is reported once and switched off."""

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._trackers = dict(trackers)
        self._warn = warn

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

    def finish(self, error: BaseException | None) -> None:
        """At the end."""
        self._each(lambda tracker: tracker.finish(error))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as err:
                del self._trackers[name]
                self._warn(f"tracker {name!r} failed and is off for the rest of the run: {err}")


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return 1 << 62  # a line cut short by a crash


def _plain(value: Any) -> Any:  # Any: numpy values and whatever an answer holds
    return value.tolist() if hasattr(value, "tolist") else str(value)
