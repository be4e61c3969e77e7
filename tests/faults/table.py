"""Runs all trials, and writes what became of them into docs/reliability.md.

`python tests/faults/table.py [MODE ...]` runs those of these modes (all); `--out FILE` also keeps them there,
one a line, and goes on where a run before was ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "plugin"), str(HERE)]

from campaign import Trial, play  # noqa: E402
from rlinf_faults.strike import Fault  # noqa: E402
from trials import KINDS  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- trials: begin -->", "<!-- trials: end -->"
FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP",
    "raise": "exception",
    "slow": "slow",
    "late": "slower than its deadline",
    "corrupt": "corrupt message",
    "full": "full disk",
    "driver": "SIGKILL of the driver",
}
WORKERS = {
    "reward": "reward (process of the pool)",
    "rollout": "rollout",
    "actor": "actor",
    "data": "driver (dataset)",
    "simulator": "simulator",
    "policy": "policy",
}
OUTCOMES = {
    "absorbed": "made again within the worker",
    "alone": "process started again alone",
    "checkpoint": "run went on from its checkpoint",
    "error": "named error, then resumed",
    "resumed": "resumed",
}


def rows(trials: list[Trial]) -> list[str]:
    """The table."""
    groups: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[_worker(trial), trial.fault.what, trial.fault.place.partition(".")[2]].append(trial)
    lines = ["| worker | stage | fault | trials | what became of them | seconds, median (longest) |"]
    lines.append("|---|---|---|---|---|---|")
    for (worker, what, stage), each in sorted(groups.items()):
        ends = Counter(OUTCOMES.get(trial.outcome, trial.outcome) for trial in each)
        told = ", ".join(f"{name}: {count}" if len(ends) > 1 else name for name, count in ends.most_common())
        seconds = [trial.seconds for trial in each]
        times = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
        lines.append(f"| {worker} | {stage} | {FAULTS[what]} | {len(each)} | {told} | {times} |")
    return lines


def summary(trials: list[Trial]) -> str:
    """One line."""
    wrong = [trial for trial in trials if trial.wrong]
    return f"{len(trials)} trials, of which {len(trials) - len(wrong)} ended as they should."


def write(trials: list[Trial], page: Path) -> None:
    """Put the table in its place on a page."""
    text = page.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text("\n".join([before, summary(trials), "", *rows(trials), after]))


def _worker(trial: Trial) -> str:
    kind = trial.fault.place.partition(".")[0]
    if trial.fault.what == "driver":
        return "driver"
    if kind == "reward" and "in their worker" in trial.mode:
        return "reward worker"
    if kind == "simulator":
        return "simulator (process of its own)" if "apart" in trial.mode else "environment"
    return WORKERS[kind]


def _load(file: Path) -> list[Trial]:
    if not file.exists():
        return []
    read: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return [Trial(**{**each, "fault": Fault(**each["fault"])}) for each in read]


def main() -> None:
    """Run what has not run yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modes", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp()) / "trials.jsonl")
    parser.add_argument("--write", action="store_true", help="write the page from what there is")
    given = parser.parse_args()
    trials = _load(given.out)
    if not given.write:
        _run(given.modes, given.out, trials)
    write(trials, PAGE)
    wrong = [trial for trial in trials if trial.wrong]
    for trial in wrong:
        print(trial.mode, trial.fault, trial.outcome, trial.wrong, trial.said, sep="\n  ")
    print(summary(trials))
    sys.exit(bool(wrong))


def _run(modes: list[str], out: Path, trials: list[Trial]) -> None:
    for kind in KINDS:
        for number, faults in enumerate(kind.campaigns()):
            name = f"{kind.mode.name} #{number}"
            if (modes and kind.mode.name not in modes) or any(trial.run == name for trial in trials):
                continue
            played = play(kind.mode, faults, Path(tempfile.mkdtemp(prefix="rlinf-faults-")), name)
            with out.open("a") as file:
                for trial in played:
                    file.write(json.dumps(asdict(trial)) + "\n")
            trials += played
            good = sum(not trial.wrong for trial in played)
            print(f"{name}: {good} of {len(played)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
