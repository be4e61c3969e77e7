"""Conformance checks of execution engines; their workers stand in `fakes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlinf_core.api import Host, HostSpec, WorkerSpec
from rlinf_core.errors import WorkerError
from rlinf_core.testing.subject import Subject, expect

TIMEOUT_S = 60.0
ECHO = WorkerSpec(name="echo[0]", target="rlinf_core.testing.workers:EchoWorker")


def check_engines_call(subject: Subject) -> None:
    """A host starts, builds a worker and returns what its methods return."""
    with _host(subject) as host:
        expect(host.name == "host0", f"the host of HostSpec(name='host0') is called {host.name!r}")
        value = host.call("echo[0]", "echo", {"a": [1, 2.5, None]}).result(TIMEOUT_S)
        expect(value == {"a": [1, 2.5, None]}, f"a worker's return value arrived as {value!r}")


def check_engines_order(subject: Subject) -> None:
    """Calls to one host run in the order made, and a finished call says so."""
    with _host(subject) as host:
        calls = [host.call("echo[0]", "count") for _ in range(10)]
        counted = [call.result(TIMEOUT_S) for call in calls]
        expect(counted == list(range(1, 11)), f"ten calls were run in the order {counted}")
        expect(all(call.done() for call in calls), "done() is False after result()")


def check_engines_error(subject: Subject) -> None:
    """A method that raises gives WorkerError with the worker's name and traceback; the worker lives on."""
    with _host(subject) as host:
        try:
            host.call("echo[0]", "fail", "on purpose").result(TIMEOUT_S)
        except WorkerError as err:
            expect(
                "echo[0]" in (err.worker, str(err)) or "echo[0]" in str(err),
                f"{err} does not name the worker",
            )
            expect("on purpose" in err.traceback, "the WorkerError carries no traceback of the worker")
        else:
            expect(False, "a method that raised returned; result() must raise WorkerError")
        expect(host.call("echo[0]", "count").result(TIMEOUT_S) == 1, "after an error the worker is gone")


def check_engines_stage(subject: Subject) -> None:
    """A stage takes chunks and yields chunks in order; its return value is its result."""
    with _host(subject) as host:
        made, result = _double(host, [[1, 2], [3], [4, 5]])
        expect(made == [2, 4, 6, 8, 10], f"a stage that doubles 1..5 yielded {made}")
        expect(result == 5, "result() of a stage must be what its generator returned")


def check_engines_drop(subject: Subject) -> None:
    """A dropped worker is gone, and another may take its name."""
    with _host(subject) as host:
        host.call("echo[0]", "count").result(TIMEOUT_S)
        host.drop("echo[0]").result(TIMEOUT_S)
        try:
            host.call("echo[0]", "count").result(TIMEOUT_S)
        except WorkerError:
            pass
        else:
            expect(False, "a call to a dropped worker returned; it must raise WorkerError")
        host.create(ECHO).result(TIMEOUT_S)
        counted = host.call("echo[0]", "count").result(TIMEOUT_S)
        expect(counted == 1, f"a worker made anew counts {counted} at its first call: it is the old one")


def check_engines_spans(subject: Subject) -> None:
    """An engine that tells what workers did tells it once, of calls and of stages with their samples."""
    engine = subject.build()
    try:
        host: Host = engine.start([HostSpec(name="host0")])[0]
        host.create(ECHO).result(TIMEOUT_S)
        _double(host, [[1, 2], [3], [4, 5]])
        host.call("echo[0]", "count").result(TIMEOUT_S)
        told = [item for item in engine.drain_spans() if item.span.kind == "run"]
        found = [(item.host, item.span.worker, item.span.name, item.span.samples) for item in told]
        wanted = [("host0", "echo[0]", "__init__", 0), ("host0", "echo[0]", "double", 5)]
        wanted.append(("host0", "echo[0]", "count", 0))
        expect(found in ([], wanted), f"the run spans are {found}, expected {wanted}")
        expect(engine.drain_spans() == [], "spans were told twice")
    finally:
        engine.stop()


def check_engines_stop(subject: Subject) -> None:
    """`stop` may be called twice, and without a start."""
    engine = subject.build()
    engine.start([HostSpec(name="host0")])
    engine.stop()
    engine.stop()
    subject.build().stop()


def _double(host: Host, chunks: list[list[int]]) -> tuple[list[int], int]:
    """What the stage yields of the chunks, and its result."""
    stage = host.stage("echo[0]", "double")
    if not stage.feed(iter(chunks)):
        for chunk in chunks:
            stage.send(chunk)
        stage.close()
    return [item for chunk in stage for item in chunk], stage.result()


@contextmanager
def _host(subject: Subject) -> Iterator[Host]:
    engine = subject.build()
    try:
        host: Host = engine.start([HostSpec(name="host0")])[0]
        host.create(ECHO).result(TIMEOUT_S)
        yield host
    finally:
        engine.stop()
