"""A run with a list of faults, beside the same run without any: what became of each, and what was left."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlinf_faults import strike
from rlinf_faults.strike import FOLDER, Fault, struck, write_plan

from rlinf_core.cli.app import main

CLOCK = ("time/", "util/", "sync/", "bubble_ratio", "faults/", "env/")
OPEN = (".draft-", ".replaced-", ".part-")  # what an unfinished save is called
CACHES = "torchinductor_"  # torch's, of one user
CRASHED = 70
DISK_BYTES = 4 * 2**20
LONGEST_S = 600.0  # of a command
LEFT_S = 10.0  # that processes may take to end after a run


@dataclass(frozen=True)
class Mode:
    """A kind of run: its command line, and how many steps it has at least."""

    name: str
    settings: tuple[str, ...]
    steps: int = 3
    exact: bool = True  # what happens in it changes no number
    disk: bool = False  # its files lie on a small disk of their own
    apart: bool = False  # it runs as a process of its own

    def args(self, output: Path, steps: int) -> list[str]:
        """Of a new run."""
        return ["train", f"--output={output}", f"train.steps={steps}", *self.settings]


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    at: float

    @property
    def error(self) -> str:
        """What it said."""
        return self.err[self.err.index("error: ") :].strip() if "error: " in self.err else ""


@dataclass
class Trial:
    """What became of a fault."""

    mode: str
    fault: Fault
    outcome: str  # alone, checkpoint, absorbed, error, resumed
    seconds: float  # from the fault to the end of its step, or to the error
    said: str = ""
    run: str = ""
    wrong: list[str] = field(default_factory=list)


def command(args: Sequence[str]) -> Ended:
    """`rlinf ARGS` in this process."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["rlinf", *args]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:  # what a user would see as the traceback of a program that has crashed
        code = CRASHED
        traceback.print_exc(file=err)
    finally:
        sys.argv = argv
    return Ended(code, out.getvalue(), err.getvalue(), time.time())


def command_apart(args: Sequence[str]) -> Ended:
    """`rlinf ARGS` in a process of its own."""
    program = [sys.executable, "-c", "from rlinf_core.cli.app import run; run()", *args]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=LONGEST_S
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.time())


def play(mode: Mode, faults: Sequence[Fault], folder: Path, run: str = "") -> list[Trial]:
    """Run, with these faults, going on whenever one ends the run; what is wrong is said of the trial."""
    with _disk(folder) if mode.disk else contextlib.nullcontext():
        trials = _play(mode, faults, folder)
    for trial in trials:
        trial.run = run
    return trials


def _play(mode: Mode, faults: Sequence[Fault], folder: Path) -> list[Trial]:
    steps = max(mode.steps, 1 + max((fault.step for fault in faults), default=0))
    output, notes, temporary = folder / "run", _aside(folder) / "faults", _aside(folder) / "tmp"
    temporary.mkdir(parents=True)
    write_plan(notes, list(faults))
    (notes / "disk").write_text(str(folder) if mode.disk and os.path.ismount(folder) else "")
    opened = _descriptors()
    ends: list[Ended] = []
    with _environment(**{FOLDER: str(notes), "TMPDIR": str(temporary)}):
        args = mode.args(output, steps)
        while len(ends) <= len(faults):
            _forget()
            ends.append((command_apart if mode.apart else command)(args))
            (folder / "filler").unlink(missing_ok=True)
            if ends[-1].code == 0:
                break
            args = ["train", f"--resume={output}"] if (output / "config.yaml").exists() else args
        left = leftovers(notes, temporary, output)
    trials = [_trial(mode, fault, notes, output, ends) for fault in faults]
    wrong = [*left, *_differences(mode, steps, output)] if ends[-1].code == 0 else [ends[-1].err[-2000:]]
    if _descriptors() > opened and faults:
        wrong.append(f"{_descriptors() - opened} descriptors are left open")
    for trial in trials:
        trial.wrong += wrong
    return trials


def leftovers(notes: Path, temporary: Path, output: Path) -> list[str]:
    """What a run has left behind that it should not."""
    end = time.monotonic() + LEFT_S
    while (alive := _processes(notes)) and time.monotonic() < end:
        time.sleep(0.05)
    found = [f"process {pid} is left" for pid in alive]
    others = [path for path in temporary.iterdir() if not path.name.startswith(CACHES)]
    found += [f"{path.name} is left in the folder of temporary files" for path in others]
    return found + [f"{path} is left" for path in output.rglob("*") if path.name.startswith(OPEN)]


@cache
def whole(mode: Mode, steps: int, folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Numbers and weights of the run to which nothing happens."""
    output = folder / f"{mode.name}-{steps}"
    _forget()
    ended = command(mode.args(output, steps))
    assert ended.code == 0, ended.err
    return numbers(output), weights(output)


def numbers(output: Path) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if not k.startswith(CLOCK)} for record in records]


def weights(output: Path) -> bytes:
    """As the last checkpoint has them."""
    files = sorted(path for path in (output / "checkpoints" / "latest").resolve().rglob("trainer.pt"))
    import torch

    state = torch.load(files[0], weights_only=True)["module"]
    return b"".join(state[name].numpy().tobytes() for name in sorted(state))


def _trial(mode: Mode, fault: Fault, notes: Path, output: Path, ends: Sequence[Ended]) -> Trial:
    at = struck(notes).get(fault.number)
    if at is None:
        return Trial(mode.name, fault, "none", 0.0, wrong=["it did not happen"])
    told = [line.split() for line in (notes / "times").read_text().splitlines()]
    events = [(kind, int(step), float(when)) for kind, step, when in told if float(when) >= at]
    if fault.what == "driver":
        end = next(end for end in ends if end.at >= at)
        wrong = [] if end.code == -signal.SIGKILL else [f"the driver ended with {end.code}"]
        return Trial(mode.name, fault, "resumed", end.at - at, wrong=wrong)
    error = next((end for end in ends if end.code and end.at >= at), None)
    if error is not None and any(at < other <= error.at for other in struck(notes).values()):
        error = None  # it is another fault's
    done = next((when for kind, step, when in events if kind == "end" and step == fault.step + 1), None)
    if error is not None and (done is None or done > error.at):
        wrong = [] if error.error else [f"it ended the run without a word: {error.err[-1500:]}"]
        return Trial(mode.name, fault, "error", error.at - at, error.error, wrong=wrong)
    if done is None:
        return Trial(mode.name, fault, "none", 0.0, wrong=["its step has not come to an end"])
    again = any(kind == "start" and when < done for kind, _, when in events)
    alone = _records(output)[fault.step + 1].get("faults/restarts")
    return Trial(mode.name, fault, "checkpoint" if again else "alone" if alone else "absorbed", done - at)


def _records(output: Path) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record for record in records}


def _differences(mode: Mode, steps: int, output: Path) -> list[str]:
    if not mode.exact:
        unscored = sum(record.get("train/unscored", 0.0) for record in numbers(output))
        return [] if unscored <= steps else [f"{unscored:.0f} samples were not scored"]
    same_numbers, same_weights = whole(mode, steps, _home())
    wrong = []
    if numbers(output) != same_numbers:
        wrong.append("its numbers differ from those of a run to which nothing happened")
    if weights(output) != same_weights:
        wrong.append("its weights differ from those of a run to which nothing happened")
    return wrong


@cache
def _home() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="rlinf-faults-"))


def _aside(folder: Path) -> Path:
    """Not on the small disk."""
    return folder.with_name(f"{folder.name}-aside")


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A small disk there, where this user may mount one; otherwise a full disk is what a write says."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "faults", str(folder)],
        capture_output=True,
        check=False,
    )
    try:
        yield
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


def _forget() -> None:
    """The plan of faults, as of a new process."""
    strike._plan.cache_clear()
    strike._visits.clear()


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def _processes(notes: Path) -> list[int]:
    """Those with these faults in their environment, but this one."""
    mark = f"{FOLDER}={notes}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(") ")[2][:1]
                if mark in (entry / "environ").read_bytes() and state not in "ZX":
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
