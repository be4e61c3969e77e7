"""The last steps of `trace.json` as bars: which worker did what when, and how long devices were idle.

Any: JSON values throughout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.errors import RlinfError

STEPS = 3  # that are shown
BARS = 1500  # of one step: the longest


@dataclass(frozen=True)
class Bar:
    """What one worker did, in seconds from the begin of its step."""

    lane: str
    name: str
    begin: float
    seconds: float
    waits: bool


@dataclass(frozen=True)
class StepBars:
    """One step of a run."""

    step: int
    seconds: float
    bars: list[Bar]


def read_timeline(path: Path, steps: int = STEPS) -> list[StepBars]:
    """Of the last whole steps; none without a trace. Raises `RlinfError` for a damaged one."""
    if not path.exists():
        return []
    try:
        events = json.loads(path.read_text())
    except ValueError as err:
        raise RlinfError(f"{path}: not a trace: {err}") from err
    lanes = _lanes(events)
    windows: dict[int, tuple[float, float]] = {}
    for event in events:
        if event.get("ph") == "X" and event["name"] == "step" and event["cat"] == "driver":
            windows[int(event["args"]["step"])] = (event["ts"], event["dur"])
    return [_step(step, windows[step], events, lanes) for step in sorted(windows)[-steps:]]


def _lanes(events: list[Any]) -> dict[tuple[int, int], str]:
    hosts, workers = {}, {}
    for event in events:
        if event.get("ph") == "M":
            name = event["args"]["name"]
            if event["name"] == "process_name":
                hosts[event["pid"]] = name
            else:
                workers[event["pid"], event["tid"]] = name
    return {(pid, tid): f"{hosts.get(pid, pid)} · {worker}" for (pid, tid), worker in workers.items()}


def _step(
    step: int, window: tuple[float, float], events: list[Any], lanes: dict[tuple[int, int], str]
) -> StepBars:
    first, length = window
    found = []
    for event in events:
        if event.get("ph") != "X" or event["name"] == "step":
            continue
        begin, end = max(event["ts"], first), min(event["ts"] + event["dur"], first + length)
        if end > begin:
            lane = lanes.get((event["pid"], event["tid"]), str(event["pid"]))
            found.append(
                Bar(lane, event["name"], (begin - first) / 1e6, (end - begin) / 1e6, event["cat"] == "wait")
            )
    found = sorted(found, key=lambda bar: -bar.seconds)[:BARS]
    return StepBars(step, length / 1e6, sorted(found, key=lambda bar: (bar.lane, bar.begin)))
