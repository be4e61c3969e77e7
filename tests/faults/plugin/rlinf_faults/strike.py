"""Faults, each once at a visit of a place in a step: `RLINF_FAULTS` names a folder that lists them."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

FOLDER = "RLINF_FAULTS"
SLOW_S = 0.5
LATE_S = 4.0  # later than the deadlines of the trials
_GARBAGE = bytes(range(200, 256)) * 4
_visits: Counter[tuple[str, int]] = Counter()  # of a place in a step, by this process


@dataclass(frozen=True)
class Fault:
    """`what` happens at the `visit`th visit of a `place` after step `step` has ended."""

    number: int
    place: str  # "rollout.generate"
    step: int
    visit: int
    what: str  # kill, stop, raise, slow, late, corrupt, full, driver


class InjectedError(ValueError):
    """What a fault raises."""


def write_plan(folder: Path, faults: list[Fault]) -> None:
    """List them, for every process that is started with `RLINF_FAULTS=folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps([asdict(fault) for fault in faults]))
    tell_step(folder, 0)


def tell_step(folder: Path, step: int) -> None:
    """So many steps have ended."""
    (folder / "driver").write_text(str(os.getpid()))
    draft = folder / f".step-{os.getpid()}"
    draft.write_text(str(step))
    draft.replace(folder / "step")


def struck(folder: Path) -> dict[int, float]:
    """When each fault happened, by its number."""
    return {int(path.name.split("-")[1]): path.stat().st_mtime for path in folder.glob("struck-*")}


def visit(place: str) -> None:
    """A part of the plugin is at a place; what is planned there happens."""
    planned = [fault for fault in _plan() if fault.place == place]
    if not planned:
        return
    folder = Path(os.environ[FOLDER])
    step = int((folder / "step").read_text())
    _visits[place, step] += 1
    for fault in planned:
        if (fault.step, fault.visit) == (step, _visits[place, step]) and _first(folder, fault):
            _do(fault, folder)


@cache
def _plan() -> tuple[Fault, ...]:
    if FOLDER not in os.environ:
        return ()
    told = json.loads((Path(os.environ[FOLDER]) / "plan.json").read_text())
    return tuple(Fault(**each) for each in told)


def _first(folder: Path, fault: Fault) -> bool:
    try:
        os.close(os.open(folder / f"struck-{fault.number}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _do(fault: Fault, folder: Path) -> None:
    if fault.what == "raise":
        raise InjectedError(f"fault {fault.number} at {fault.place}")
    if fault.what in ("slow", "late"):
        time.sleep(SLOW_S if fault.what == "slow" else LATE_S)
    elif fault.what == "corrupt":
        _corrupt()
    elif fault.what == "full":
        disk = (folder / "disk").read_text()
        if not disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fill(Path(disk))
    elif fault.what == "driver":
        os.kill(int((folder / "driver").read_text()), signal.SIGKILL)
        time.sleep(30.0)  # within which whoever waits for the driver's end has to have ended this process
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault.what])


def _corrupt() -> None:
    """Send to whoever started this process what is no message."""
    gc.unfreeze()  # what is frozen is not told of
    for thing in gc.get_objects():
        kind = type(thing)
        if kind.__name__ == "Wire":
            thing.socket.sendall(_GARBAGE)
        elif kind.__name__ == "Connection" and kind.__module__ == "multiprocessing.connection":
            os.write(thing.fileno(), _GARBAGE)


def fill(disk: Path) -> None:
    """Leave nothing free there."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
