"""A tiny job that trains for hours while what its processes hold is noted: `python tests/load/soak.py`.

It is a whole run as a user starts it: workers in processes of their own, rewards, evaluations, checkpoints
and trackers. After the time it is ended by Ctrl-C. One JSON line says what grew; LOG has the samples, and
`--page LOG` prints them as a page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

JOB = (
    *("--engine=local", "--ranks=2", "--model=hf_lm", "model.preset=char-llama", "--data=sort_digits"),
    *(
        "--reward=exact",
        "--reward=length",
        "mode=disaggregated",
        "sampling.max_new_tokens=8",
        "algo.group_size=8",
    ),
    *("warm_start.steps=200", "train.prompts_per_step=4", "train.steps=1000000", "train.mini_batches=2"),
    *("eval.every=50", "eval.samples=16", "checkpoint.every=50", "checkpoint.keep_best=eval/accuracy"),
    *("trackers=[tensorboard,csv]", "optimizer.lr=1e-4"),
)
WARM_UP = 0.125  # of the time: caches fill, allocators find their size
END_S = 120.0  # that a run may take to end after Ctrl-C


@dataclass(frozen=True)
class Held:
    """What one process holds at one moment. Pages of several count in part: sums are what all take."""

    minute: float
    step: int
    process: str  # what it runs, and its pid
    memory_kb: float  # its own: heaps and stacks
    shared_kb: float  # shared memory
    descriptors: int
    threads: int
    file_kb: float = 0.0  # of files, such as libraries; changes with what else the machine runs


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:  # it has just ended
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def held(pid: int, minute: float, step: int) -> Held | None:
    """What a process holds; None if it has just ended."""
    folder = Path("/proc") / str(pid)
    try:
        sizes = dict(line.split()[:2] for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
        count = len(list((folder / "fd").iterdir()))
        threads = len(list((folder / "task").iterdir()))
        words = (folder / "cmdline").read_text().split("\0")
    except OSError:
        return None
    own, shared, files = (float(sizes[f"Pss_{part}:"]) for part in ("Anon", "Shmem", "File"))
    return Held(minute, step, f"{_name(words)} {pid}", own, shared, count, threads, files)


def _name(words: Sequence[str]) -> str:
    """The module that a process runs."""
    if "-m" in words:
        return words[words.index("-m") + 1].removeprefix("rlinf_core.")
    return "driver" if "train" in words else Path(words[0]).name


def steps_of(run: Path) -> int:
    """The last step in the log of a run."""
    log = run / "metrics.jsonl"
    if not log.exists():
        return 0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64 * 1024))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def soak(run: Path, log: Path, hours: float, every_s: float) -> dict[str, Any]:
    """Start the job, watch it for the time, end it, and tell how it was."""
    command = [
        sys.executable,
        "-c",
        "from rlinf_core.cli.app import run; run()",
        "train",
        f"--output={run}",
        *JOB,
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as rows, log.with_suffix(".out").open("w") as output:
        rows.write(",".join(field.name for field in fields(Held)) + "\n")
        began = time.monotonic()
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while time.monotonic() - began < hours * 3600 and job.poll() is None:
                time.sleep(every_s)
                _note(job.pid, run, (time.monotonic() - began) / 60, rows)
            pids = family(job.pid)
            job.send_signal(signal.SIGINT)
            job.wait(END_S)
        finally:
            for pid in family(job.pid) if job.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    return {"exit": job.returncode, "left_processes": len(left), **summary(read(log))}


def _note(pid: int, run: Path, minute: float, rows: Any) -> None:
    step = steps_of(run)
    for each in family(pid):
        found = held(each, minute, step)
        if found is not None:
            rows.write(",".join(str(value) for value in asdict(found).values()) + "\n")
    rows.flush()


def read(log: Path) -> list[Held]:
    """The rows of a log."""
    kinds = {"str": str, "int": int, "float": float}
    types = {field.name: kinds[str(field.type)] for field in fields(Held)}
    header, *lines = log.read_text().splitlines()
    found = []
    for line in lines:
        given = zip(header.split(","), line.split(","), strict=True)
        found.append(Held(**{name: types[name](value) for name, value in given}))
    return found


def summary(rows: Sequence[Held]) -> dict[str, Any]:
    """Steps, and what grew after the warm-up."""
    end = rows[-1].minute
    steady = [row for row in rows if row.minute >= WARM_UP * end]
    names = sorted({row.process for row in steady if row.minute == steady[0].minute})
    stayed = [row for row in steady if row.process in names]
    return {
        "minutes": round(end, 1),
        "steps": rows[-1].step,
        "seconds_a_step": round(60 * end / max(1, rows[-1].step), 3),
        "all": _growth(_sums(steady)),
        **{name: _growth([row for row in stayed if row.process == name]) for name in names},
        "processes": [len(_at(steady, steady[0].minute)), len(_at(steady, end))],
        "came_and_went": len({row.process for row in steady}) - len(names),
    }


def _at(rows: Sequence[Held], minute: float) -> list[Held]:
    return [row for row in rows if row.minute == minute]


def _sums(rows: Sequence[Held]) -> list[Held]:
    """One row a moment, for all processes."""
    moments: dict[float, list[Held]] = {}
    for row in rows:
        moments.setdefault(row.minute, []).append(row)
    numbers = ("memory_kb", "shared_kb", "descriptors", "threads", "file_kb")
    return [
        Held(minute, each[0].step, "all", *(sum(getattr(row, name) for row in each) for name in numbers))
        for minute, each in moments.items()
    ]


def _growth(rows: Sequence[Held]) -> dict[str, Any]:
    """Of what they hold themselves: from the first to the last eighth of the rows, and a line's slope."""
    eighth = max(1, len(rows) // 8)
    first, last = rows[:eighth], rows[-eighth:]

    def mean(part: Sequence[Held], name: str) -> float:
        return statistics.fmean(getattr(row, name) for row in part)

    total = [row.memory_kb + row.shared_kb for row in rows]
    before, after = (mean(part, "memory_kb") + mean(part, "shared_kb") for part in (first, last))
    slope = 0.0
    if len(rows) > 2:
        slope = statistics.linear_regression([row.minute / 60 for row in rows], total).slope
    return {
        "mb": [round(before / 1024, 1), round(after / 1024, 1)],
        "growth": round(after / before - 1, 5),
        "slope_mb_an_hour": round(slope / 1024, 3),
        "files_mb": [round(mean(part, "file_kb") / 1024, 1) for part in (first, last)],
        "shared_mb": [round(mean(part, "shared_kb") / 1024, 1) for part in (first, last)],
        "descriptors": [rows[0].descriptors, rows[-1].descriptors],
        "threads": [rows[0].threads, rows[-1].threads],
    }


def page(rows: Sequence[Held]) -> str:
    """Tables of a run: what each process held, and all of them over time."""
    told = summary(rows)
    names = [name for name, part in told.items() if isinstance(part, dict)]
    lines = [
        f"{told['steps']:,} steps in {told['minutes']:.0f} minutes, {told['seconds_a_step']} s a step.",
        "",
        "| process | MB, first eighth | MB, last eighth | growth | MB an hour | descriptors | threads |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        part = told[name]
        counts = [f"{part[kind][0]} -> {part[kind][1]}" for kind in ("descriptors", "threads")]
        numbers = [*map(str, part["mb"]), f"{100 * part['growth']:.2f} %", str(part["slope_mb_an_hour"])]
        lines.append(f"| {' | '.join([name.rpartition(' ')[0] or name, *numbers, *counts])} |")
    lines += [
        "",
        "| minute | step | MB of all | shared memory, MB | descriptors | threads |",
        "|" + "---|" * 6,
    ]
    moments = _sums(rows)
    for row in moments[:: max(1, len(moments) // 12)]:
        held = (row.memory_kb + row.shared_kb) / 1024
        lines.append(
            f"| {row.minute:.0f} | {row.step:,} | {held:.1f} | {row.shared_kb / 1024:.1f} | "
            f"{row.descriptors} | {row.threads} |"
        )
    return "\n".join(lines)


def machine() -> str:
    """Processor and number of usable cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    """`python tests/load/soak.py --hours 2 --log soak.csv`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two samples")
    parser.add_argument("--log", type=Path, default=Path("runs/soak.csv"))
    parser.add_argument("--summary", type=Path, help="of this log, instead of a new run")
    parser.add_argument("--page", type=Path, help="tables of this log, instead of a new run")
    chosen = parser.parse_args()
    if chosen.page:
        print(page(read(chosen.page)))
        return
    if chosen.summary:
        result = summary(read(chosen.summary))
    else:
        with tempfile.TemporaryDirectory(prefix="rlinf-soak-") as folder:
            result = soak(Path(folder) / "run", chosen.log, chosen.hours, chosen.every)
    print(json.dumps({**result, "machine": machine()}))


if __name__ == "__main__":
    main()
