"""Where the time of a step went: busy, waiting and moving seconds of components and devices, from spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlinf_core.api.spans import HostSpan, SpanKind

Interval = tuple[float, float]
Rows = dict[str, dict[str, list[Interval]]]  # host or worker -> kind -> intervals


@dataclass(frozen=True)
class ComponentTime:
    """One component in a window. Seconds are of one rank: the most, or the mean over ranks."""

    ranks: int
    busy_s: float  # of the busiest rank, waits and moves not counted
    busy_mean_s: float
    wait_mean_s: float
    load_mean_s: float
    transfer_mean_s: float
    samples: int  # over all ranks; ranks in lockstep each see every sample
    rank_samples: int  # of the rank with the most
    chunk: float  # mean samples of a chunk on one rank; 0 = no stage ran


def component_times(spans: Iterable[HostSpan], began: float, ended: float) -> dict[str, ComponentTime]:
    """Every component of which a rank ran within the window, by name."""
    kept = [one for one in spans if one.span.end > began and one.span.start < ended]
    workers, busy = _by_worker(kept, began, ended)
    ranks: dict[str, list[str]] = defaultdict(list)
    for worker in workers:
        ranks[worker.partition("[")[0]].append(worker)
    counts = _counts(kept)
    return {name: _component(ranks[name], workers, busy, counts) for name in sorted(ranks)}


def step_times(
    spans: Sequence[HostSpan], began: float, ended: float, devices: Sequence[str]
) -> dict[str, float]:
    """Metrics of one step; `devices` are the names of the hosts that have one and are used.

    `time/COMPONENT` (busiest rank), `time/COMPONENT_mean`, `time/COMPONENT_wait`, and `_load` and `_transfer`
    where there were any; `util/DEVICE`, the busy share of each; `bubble_ratio`, the idle share of them all.
    """
    metrics = {}
    for name, times in component_times(spans, began, ended).items():
        metrics[f"time/{name}"] = times.busy_s
        metrics[f"time/{name}_mean"] = times.busy_mean_s
        metrics[f"time/{name}_wait"] = times.wait_mean_s
        for kind, seconds in (("load", times.load_mean_s), ("transfer", times.transfer_mean_s)):
            if seconds:
                metrics[f"time/{name}_{kind}"] = seconds
    window = ended - began
    busy = device_seconds(spans, began, ended)
    for device in devices:
        metrics[f"util/{device}"] = busy.get(device, 0.0) / window
    if devices:
        metrics["bubble_ratio"] = 1.0 - sum(busy.get(name, 0.0) for name in devices) / (len(devices) * window)
    return metrics


def device_seconds(spans: Iterable[HostSpan], began: float, ended: float) -> dict[str, float]:
    """Seconds within the window in which some worker of each host worked."""
    kept = list(spans)
    hosts: dict[str, list[Interval]] = defaultdict(list)
    _, busy = _by_worker(kept, began, ended)
    for host, worker in dict.fromkeys((one.host, one.span.worker) for one in kept):
        hosts[host] += busy[host, worker]
    return {host: _length(_union(intervals)) for host, intervals in hosts.items()}


def _by_worker(
    spans: Iterable[HostSpan], began: float, ended: float
) -> tuple[Rows, dict[tuple[str, str], list[Interval]]]:
    """Intervals of each worker by kind, and in which it was busy, by host and worker."""
    rows: Rows = defaultdict(lambda: defaultdict(list))
    moving: dict[str, list[Interval]] = defaultdict(list)
    places: dict[tuple[str, str], None] = {}
    for one in spans:
        piece = (max(one.span.start, began), min(one.span.end, ended))
        if piece[0] < piece[1]:
            rows[one.span.worker][one.span.kind].append(piece)
        if one.span.kind == "load":
            moving[one.host].append(piece)
        places[one.host, one.span.worker] = None
    busy = {}
    for host, worker in places:
        idle = _union([*rows[worker]["wait"], *moving[host]])
        busy[host, worker] = _without(_union(rows[worker]["run"]), idle)
    return rows, busy


def _component(
    workers: Sequence[str],
    rows: Rows,
    busy: dict[tuple[str, str], list[Interval]],
    counts: dict[str, tuple[int, int]],
) -> ComponentTime:
    def mean(kind: SpanKind) -> float:
        return sum(_length(_union(rows[worker][kind])) for worker in workers) / len(workers)

    seconds = [_length(found) for (_, worker), found in busy.items() if worker in workers]
    samples = [counts.get(worker, (0, 0))[0] for worker in workers]
    chunks = sum(counts.get(worker, (0, 0))[1] for worker in workers)
    return ComponentTime(
        ranks=len(workers),
        busy_s=max(seconds),
        busy_mean_s=sum(seconds) / len(workers),
        wait_mean_s=mean("wait"),
        load_mean_s=mean("load"),
        transfer_mean_s=mean("transfer"),
        samples=sum(samples),
        rank_samples=max(samples),
        chunk=sum(samples) / chunks if chunks else 0.0,
    )


def _counts(spans: Iterable[HostSpan]) -> dict[str, tuple[int, int]]:
    """Samples and chunks of each worker's stages."""
    found: dict[str, tuple[int, int]] = {}
    for one in spans:
        if one.span.kind == "run":
            samples, chunks = found.get(one.span.worker, (0, 0))
            found[one.span.worker] = (samples + one.span.samples, chunks + one.span.chunks)
    return found


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _without(intervals: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """What is left of merged intervals outside of merged holes."""
    left = []
    for start, end in intervals:
        for hole_start, hole_end in holes:
            if start < hole_start < end:
                left.append((start, hole_start))
            if hole_start < end and hole_end > start:
                start = min(end, hole_end)
        if start < end:
            left.append((start, end))
    return left


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
