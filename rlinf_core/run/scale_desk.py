"""Requests to a running run for other numbers of ranks, as small files in its folder, and its answers.

A request is `RUN/scale/ID.json`, and `RUN/scale/ID.answer.json` what became of it. Whoever runs the run holds
a lock on `RUN/scale/open`, which is gone with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.errors import ConfigError, RlinfError

FOLDER = "scale"
OPEN = "open"
ANSWER = ".answer.json"
_LOOK_S = 0.1
_LOCK_S = 2.0


@dataclass(frozen=True)
class Request:
    """Somebody wants so many ranks of these components, until `deadline` (seconds since 1970)."""

    name: str
    ranks: Mapping[str, int]
    deadline: float

    @property
    def late(self) -> bool:
        """Nobody waits for it any more."""
        return time.time() > self.deadline


class ScaleDesk:
    """The run's side, from its start to its end."""

    def __init__(self, output: Path) -> None:
        self._folder = output / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob("*.json"):
            left.unlink()
        self._lock = os.open(self._folder / OPEN, os.O_RDWR | os.O_CREAT, 0o644)
        _lock(self._lock, output)
        self._open: dict[str, Request] = {}

    def new(self) -> list[Request]:
        """Requests that have come since this was asked last; what is no request is answered at once."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            if path.name.endswith(ANSWER) or path.stem in self._open:
                continue
            if (self._folder / f"{path.stem}{ANSWER}").exists():
                continue
            try:
                request = _read(path)
            except (OSError, ValueError, TypeError, LookupError) as err:
                self._write(path.stem, {"state": "refused", "error": f"{path} is no request: {err}"})
                continue
            self._open[request.name] = request
            found.append(request)
        return found

    def progress(self, request: Request, state: str) -> None:
        """Tell that the run works on it."""
        self._write(request.name, {"state": state})

    def answer(self, request: Request, **facts: Any) -> None:  # Any: JSON values
        """The last word on a request."""
        self._open.pop(request.name, None)
        self._write(request.name, facts)

    def close(self, why: str) -> None:
        """Refuse what is open; nothing is answered from here on."""
        for request in [*self._open.values(), *self.new()]:
            self.answer(request, state="refused", error=why)
        (self._folder / OPEN).unlink(missing_ok=True)
        os.close(self._lock)
        with suppress(OSError):  # there are answers in it
            self._folder.rmdir()

    def _write(self, name: str, facts: Mapping[str, Any]) -> None:
        _put(self._folder / f"{name}{ANSWER}", facts)


def ask(
    run: Path, ranks: Mapping[str, int], timeout_s: float, told: Callable[[str], None]
) -> dict[str, Any]:  # Any: JSON values
    """Ask a run for other numbers of ranks and wait for the change; `told` hears how far it is.

    Raises `ConfigError` where nothing runs or the run refuses, `RlinfError` where no answer comes in time.
    """
    folder = run / FOLDER
    _refuse_idle(run)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    end = time.time() + timeout_s
    _put(folder / f"{name}.json", {"ranks": dict(ranks), "deadline": end})
    answer, state = folder / f"{name}{ANSWER}", ""
    try:
        while True:
            alive = is_open(run)
            found = json.loads(answer.read_text()) if answer.exists() else {}
            if found.get("state") == "done":
                return found
            if found.get("state") == "refused":
                raise ConfigError(f"{run} did not scale: {found['error']}")
            if not alive:
                raise RlinfError(f"{run} has ended without an answer; see its log")
            if found.get("state", "") != state:
                state = found["state"]
                told(state)
            if time.time() > end:
                where = f"it is {state}" if state else "it has not begun, as a step is under way"
                raise RlinfError(
                    f"{run} has not scaled within {timeout_s:g} s: {where}; the request is withdrawn. "
                    "--timeout allows more"
                )
            time.sleep(_LOOK_S)
    finally:
        (folder / f"{name}.json").unlink(missing_ok=True)


def is_open(run: Path) -> bool:
    """Whether a run goes on in this folder, and takes requests."""
    try:
        handle = os.open(run / FOLDER / OPEN, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _lock(handle: int, output: Path) -> None:
    """Raises `ConfigError` where another run has the lock; those who look whether one has hold it briefly."""
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(handle)
                raise ConfigError(
                    f"output: another run goes on in {output}; wait for its end, or name another folder"
                ) from None
            time.sleep(0.01)


def _refuse_idle(run: Path) -> None:
    if not run.is_dir():
        raise ConfigError(f"{run}: there is no run here; name the folder of one")
    if not is_open(run):
        raise ConfigError(
            f"{run}: nothing runs here, on this machine, that could be scaled; start it with other numbers: "
            f"rlinf train --resume {run} ranks=N"
        )


def _read(path: Path) -> Request:
    told = json.loads(path.read_text())
    ranks = {str(name): int(count) for name, count in told["ranks"].items()}
    return Request(path.stem, ranks, float(told["deadline"]))


def _put(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.replace(path)
