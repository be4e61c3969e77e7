"""What the folder of a run says, as plain values for its report.

Any: JSON and YAML values throughout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rlinf_core.errors import RlinfError
from rlinf_core.run.notes import NOTES
from rlinf_core.run.output import METRICS, PLAN, settings_of
from rlinf_core.run.planning import HISTORY
from rlinf_core.run.sample_log import SAMPLES
from rlinf_core.run.videos import FOLDER as VIDEOS

POINTS = 1000  # of one curve; longer ones are averaged
KEPT = 240  # rows, from steps that are spread over the run


@dataclass
class Curve:
    """One metric over the steps it was logged at."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass
class RunRecord:
    """A run, finished or not."""

    name: str
    folder: Path
    settings: dict[str, str]  # dotted key -> value, as text
    curves: dict[str, Curve]
    samples: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)  # step, kind, text
    plans: list[tuple[int, str]] = field(default_factory=list)  # from which step on, as YAML
    videos: list[Path] = field(default_factory=list)
    steps: int = 0
    wanted: int = 0  # steps that the settings ask for


def read_run(folder: Path) -> RunRecord:
    """Raises `RlinfError` where there is no run."""
    settings_file = settings_of(folder)
    try:
        settings = yaml.safe_load(settings_file.read_text()) or {}
    except (OSError, yaml.YAMLError) as err:
        raise RlinfError(f"{settings_file}: cannot be read: {err}") from err
    curves = read_curves(folder / METRICS)
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        settings=flat(settings),
        curves=curves,
        samples=spread_samples(folder / SAMPLES),
        notes=list(json_lines(folder / NOTES)),
        plans=read_plans(folder),
        videos=sorted(p for p in (folder / VIDEOS).rglob("*") if p.suffix in (".mp4", ".gif", ".webm")),
        steps=max((curve.steps[-1] for curve in curves.values() if curve.steps), default=0),
        wanted=int((settings.get("train") or {}).get("steps", 0) or 0),
    )


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that may still be written: a line that is cut short is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def read_curves(path: Path) -> dict[str, Curve]:
    """Every metric; the last value of a step that was logged twice."""
    found: dict[str, dict[int, float]] = {}
    for record in json_lines(path):
        step = record.get("step")
        if not isinstance(step, int):
            continue
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                found.setdefault(name, {})[step] = float(value)
    return {name: thinned(values) for name, values in sorted(found.items())}


def thinned(values: Mapping[int, float], points: int = POINTS) -> Curve:
    """At most so many points: means over equally many steps each, at the last of them."""
    steps = sorted(values)
    size = -(-len(steps) // points) if steps else 1
    curve = Curve()
    for begin in range(0, len(steps), size):
        part = steps[begin : begin + size]
        curve.steps.append(part[-1])
        curve.values.append(sum(values[step] for step in part) / len(part))
    return curve


def spread_samples(path: Path, most: int = KEPT) -> list[dict[str, Any]]:
    """Samples of steps spread evenly over the run, the first and the last among them."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for sample in json_lines(path):
        if isinstance(sample.get("step"), int):
            by_step.setdefault(sample["step"], []).append(sample)
    return [sample for step in spread(sorted(by_step), by_step, most) for sample in by_step[step]]


def spread(steps: Sequence[int], by_step: Mapping[int, Sequence[Any]], most: int) -> list[int]:
    """As many of the steps as have so many samples together."""
    if not steps:
        return []
    each = max(1, max(len(by_step[step]) for step in steps))
    count = max(2, most // each)
    if len(steps) <= count:
        return list(steps)
    return sorted({steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)})


def read_plans(folder: Path) -> list[tuple[int, str]]:
    """The plan that the run has now, and every change before."""
    moves = [(int(m.get("step", 0)), str(m.get("plan", ""))) for m in json_lines(folder / HISTORY)]
    plan = folder / PLAN
    if plan.exists() and not moves:
        moves.append((0, plan.read_text()))
    return moves


def flat(tree: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings by dotted keys; a list of short values is one value."""
    if isinstance(tree, Mapping):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    if isinstance(tree, list) and any(isinstance(value, Mapping) for value in tree):
        return {
            key: text for i, value in enumerate(tree) for key, text in flat(value, f"{prefix}[{i}]").items()
        }
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}


def differences(runs: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs; a dash where a run has none."""
    keys = sorted({key for run in runs for key in run.settings})
    rows = [(key, [run.settings.get(key, "–") for run in runs]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1 and key != "output"]
