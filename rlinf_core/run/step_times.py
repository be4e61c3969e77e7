"""Where the time of a step went: busy, waiting and moving seconds of components and devices, from spans."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlinf_core.api.spans import HostSpan, Span, SpanKind

MAKERS = ("environment", "rollout")
LENT_TO = ("train_shared", "logprobs")  # stages


@dataclass(frozen=True)
class ComponentTime:
    """One component in a window. Seconds are of one rank: the most, or the mean over ranks."""

    busy_s: float  # of the busiest rank, waits and moves not counted
    busy_mean_s: float
    wait_mean_s: float
    load_mean_s: float
    transfer_mean_s: float


def component_times(spans: Iterable[HostSpan], began: float, ended: float) -> dict[str, ComponentTime]:
    """Every component of which a rank ran within the window, by name.

    A process does one thing at a time and its spans nest, so a moment belongs to the innermost span: a
    worker that acts within another's stage is busy then, and the other is not.
    """
    kinds: dict[str, dict[SpanKind, float]] = defaultdict(lambda: defaultdict(float))
    for span, seconds in _alone(spans, began, ended):
        kinds[span.worker][span.kind] += seconds
    ranks: dict[str, list[dict[SpanKind, float]]] = defaultdict(list)
    for worker in sorted(kinds):
        ranks[worker.partition("[")[0]].append(kinds[worker])
    return {name: _component(found) for name, found in ranks.items()}


def step_times(
    spans: Sequence[HostSpan], began: float, ended: float, devices: Sequence[str], *, ahead: bool = False
) -> dict[str, float]:
    """Metrics of one step; `devices` are the names of the hosts that have one and are used. Where some work
    `ahead`, what they ended in the step counts with what they did of it before.

    `time/COMPONENT` (busiest rank), `time/COMPONENT_mean`, `time/COMPONENT_wait`, and `_load` and `_transfer`
    where there were any; `util/DEVICE`, the busy share of each; `bubble_ratio`, the idle share of them all;
    `time/lent`, where devices were lent.
    """
    metrics = {}
    for name, times in component_times(spans, -math.inf if ahead else began, ended).items():
        metrics[f"time/{name}"] = times.busy_s
        metrics[f"time/{name}_mean"] = times.busy_mean_s
        metrics[f"time/{name}_wait"] = times.wait_mean_s
        for kind, seconds in (("load", times.load_mean_s), ("transfer", times.transfer_mean_s)):
            if seconds:
                metrics[f"time/{name}_{kind}"] = seconds
    lent = 0.0 if ahead else lent_seconds(spans, began, ended)
    if lent:
        metrics["time/lent"] = lent
    window = ended - began
    busy = device_seconds(spans, began, ended)
    for device in devices:
        metrics[f"util/{device}"] = busy.get(device, 0.0) / window
    if devices:
        metrics["bubble_ratio"] = 1.0 - sum(busy.get(name, 0.0) for name in devices) / (len(devices) * window)
    return metrics


def device_seconds(spans: Iterable[HostSpan], began: float, ended: float) -> dict[str, float]:
    """Seconds within the window in which some worker of each host worked."""
    busy: dict[str, float] = {}
    for host, found in _hosts(spans).items():
        pieces = _innermost(found)
        busy[host] = sum(_within(piece, began, ended) for span, *piece in pieces if span.kind == "run")
    return busy


def lent_seconds(spans: Iterable[HostSpan], began: float, ended: float) -> float:
    """How long hosts that generate worked for training before all of them had generated, added up."""
    hosts = {name: list(_innermost(found)) for name, found in _hosts(spans).items()}
    ends = {
        name: max((end for span, _, end in pieces if _generates(span)), default=-math.inf)
        for name, pieces in hosts.items()
    }
    last = min(ended, max(ends.values(), default=-math.inf))
    lent = 0.0
    for name, pieces in hosts.items():
        if began < ends[name]:
            lent += sum(_within(piece, began, last) for span, *piece in pieces if _is_lent(span))
    return lent


def _generates(span: Span) -> bool:
    return span.kind == "run" and span.worker.partition("[")[0] in MAKERS


def _is_lent(span: Span) -> bool:
    return span.kind == "run" and span.name in LENT_TO


def _component(ranks: Sequence[dict[SpanKind, float]]) -> ComponentTime:
    def mean(kind: SpanKind) -> float:
        return sum(rank[kind] for rank in ranks) / len(ranks)

    return ComponentTime(
        busy_s=max(rank["run"] for rank in ranks),
        busy_mean_s=mean("run"),
        wait_mean_s=mean("wait"),
        load_mean_s=mean("load"),
        transfer_mean_s=mean("transfer"),
    )


def _alone(spans: Iterable[HostSpan], began: float, ended: float) -> Iterator[tuple[Span, float]]:
    """Each span's seconds within the window in which it was the innermost one of its host."""
    for found in _hosts(spans).values():
        for span, *piece in _innermost(found):
            seconds = _within(piece, began, ended)
            if seconds > 0.0:
                yield span, seconds


def _hosts(spans: Iterable[HostSpan]) -> dict[str, list[Span]]:
    hosts: dict[str, list[Span]] = defaultdict(list)
    for one in spans:
        hosts[one.host].append(one.span)
    return hosts


def _innermost(spans: Sequence[Span]) -> Iterator[tuple[Span, float, float]]:
    """Pieces of time with the span that began last among those that cover them."""
    waiting = sorted(spans, key=lambda span: span.start, reverse=True)
    active: list[tuple[float, float, int]] = []  # latest start first, then earliest end
    borders = sorted({edge for span in spans for edge in (span.start, span.end)})
    number = len(waiting) - 1
    for start, end in itertools.pairwise(borders):
        while number >= 0 and waiting[number].start <= start:
            heapq.heappush(active, (-waiting[number].start, waiting[number].end, number))
            number -= 1
        while active and active[0][1] <= start:
            heapq.heappop(active)
        if active:
            yield waiting[active[0][2]], start, end


def _within(piece: Sequence[float], began: float, ended: float) -> float:
    start, end = piece
    return max(0.0, min(end, ended) - max(start, began))
