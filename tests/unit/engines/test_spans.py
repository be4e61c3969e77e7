"""What workers did when: written down in their processes, collected by the driver."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rlinf_core.api.engine import Engine, Host, HostSpec
from rlinf_core.api.spans import HostSpan, Span
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.inline import InlineEngine
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm import Stream
from rlinf_core.errors import WorkerError
from rlinf_core.plugins.specs import NoConfig
from rlinf_core.worker import WorkerGroup


def _group(host: Host, name: str = "probe") -> WorkerGroup:
    return WorkerGroup.create(name, "engine_workers:Probe", [host], {}, ["cpu"], 0)


def _named(spans: list[HostSpan], name: str, kind: str = "run") -> list[Span]:
    return [item.span for item in spans if item.span.name == name and item.span.kind == kind]


def test_every_call_leaves_one_run_span_on_the_clock_of_the_driver(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])
    began = time.monotonic()
    group.call("sleep", 0.05).wait()
    ended = time.monotonic()
    spans = engine.drain_spans()
    assert [(item.host, item.span.worker, item.span.name, item.span.kind) for item in spans] == [
        ("a", "probe[0]", "__init__", "run"),
        ("a", "probe[0]", "sleep", "run"),
    ]
    slept = spans[1].span
    assert began <= slept.start <= slept.end <= ended
    assert slept.end - slept.start >= 0.05
    assert engine.drain_spans() == []


def test_a_call_that_fails_leaves_its_span_too(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])
    with pytest.raises(WorkerError):
        group.call("fail", "on purpose").wait()
    assert len(_named(engine.drain_spans(), "fail")) == 1


def test_a_stage_counts_its_samples_and_its_idle_time_is_its_waits(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])

    def source() -> Iterator[list[int]]:
        for chunk in ([1, 2, 3], [4, 5], [6]):
            time.sleep(0.05)
            yield chunk

    stream = group.stage("slowly", Stream.of(source()), seconds=0.02)
    assert stream.collect() == [3, 2, 1]
    spans = engine.drain_spans()
    run = _named(spans, "slowly")[0]
    assert (run.samples, run.chunks) == (6, 3)
    waited = sum(span.end - span.start for span in _named(spans, "slowly", "wait"))
    assert all(run.start <= span.start and span.end <= run.end for span in _named(spans, "slowly", "wait"))
    assert waited > 0.05  # of each pause of the source, what the stage did not work through
    assert run.end - run.start - waited > 0.059  # three chunks of 0.02 s


def test_a_stage_that_yields_more_than_it_takes_counts_what_it_yields(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])
    group.stage("burst", Stream.of([[1, 2]]), count=5, size=1).collect()
    run = _named(engine.drain_spans(), "burst")[0]
    assert (run.samples, run.chunks) == (5, 5)


def test_a_stage_that_is_cancelled_tells_what_it_did_so_far(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])
    chunks = iter(group.stage("endless", Stream.of([])))
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    group.call("echo", 1).wait()
    run = _named(engine.drain_spans(), "endless")[0]
    assert run.samples >= 1


def test_stages_that_run_within_one_another_in_one_thread_do_not_count_each_others_work() -> None:
    engine = InlineEngine(NoConfig())
    first, second = (_group(host, host.name) for host in engine.start([HostSpec("a"), HostSpec("b")]))
    inner = first.stage("slowly", Stream.of([[1], [2], [3]]), seconds=0.04)
    second.stage("slowly", inner, seconds=0.02).collect()
    spans = engine.drain_spans()
    engine.stop()
    busy = {}
    for name in ("a[0]", "b[0]"):
        own = [item.span for item in spans if item.span.worker == name and item.span.name == "slowly"]
        lengths = {kind: sum(s.end - s.start for s in own if s.kind == kind) for kind in ("run", "wait")}
        busy[name] = lengths["run"] - lengths["wait"]
    assert busy["a[0]"] == pytest.approx(0.12, abs=0.03)
    assert busy["b[0]"] == pytest.approx(0.06, abs=0.03)


def test_a_stage_whose_output_nobody_takes_waits_for_credit() -> None:
    engine = LocalEngine(LocalConfig(buffer_mb=1))
    group = _group(engine.start([HostSpec("a")])[0])
    stream = group.stage("burst", Stream.of([[1]]), count=8, size=2**19)
    chunks = iter(stream)
    next(chunks)
    time.sleep(0.3)
    for _ in chunks:
        pass
    waits = _named(engine.drain_spans(), "burst", "wait")
    engine.stop()
    assert max(span.end - span.start for span in waits) > 0.2


def test_spans_that_a_method_writes_down_itself_come_along(engine: Engine) -> None:
    group = _group(engine.start([HostSpec("a")])[0])
    group.call("wait_inside", 0.03).wait()
    waits = _named(engine.drain_spans(), "channel", "wait")
    assert [0.03 <= span.end - span.start < 0.2 for span in waits] == [True]


def test_spans_that_nobody_asks_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_core.hosting.link._MOST_UNREAD", 10)
    engine = LocalEngine(LocalConfig())
    group = _group(engine.start([HostSpec("a")])[0])
    for _ in range(25):
        group.call("echo", 1).wait()
    assert len(engine.drain_spans()) == 10
    engine.stop()
