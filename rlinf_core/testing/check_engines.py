"""Conformance checks of execution engines: one contract for those in this process, on this machine and on
many; the worker that they build is in `workers.py`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_core.api import Engine, Host, HostSpec, WorkerSpec
from rlinf_core.errors import ConfigError, WorkerError
from rlinf_core.testing.subject import CheckSkipped, Subject, expect

TIMEOUT_S = 60.0
DEATH_S = 5.0  # in which a death has to be told
MB = 2**20
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


def check_engines_arrays(subject: Subject) -> None:
    """Arrays arrive as they are, small and large ones, writable, and apart from the caller's."""
    import numpy

    with _host(subject) as host:
        for size in (3, 4 * MB):
            sent = numpy.arange(size)
            got = host.call("echo[0]", "echo", sent).result(TIMEOUT_S)
            expect(numpy.array_equal(got, sent), f"an array of {size} numbers arrived changed")
            expect(got.flags.writeable, f"an array of {size} numbers arrived read-only")


def check_engines_backpressure(subject: Subject) -> None:
    """A stage that makes more than is taken waits, bounded by bytes, and ends when nobody wants the rest."""
    with _host(subject) as host:
        stage = host.stage("echo[0]", "endless", 8 * MB)
        if not stage.feed(iter([])):
            stage.close()
        chunks = iter(stage)
        next(chunks)
        time.sleep(0.3)
        stage.cancel()
        try:
            for _ in chunks:
                pass
        except WorkerError:
            pass
        else:
            expect(False, "a cancelled stage ended as if it were complete; its iteration must raise")
        made = host.call("echo[0]", "chunks_made").result(TIMEOUT_S)
        expect(made < 200, f"an unread stage made {made} chunks of 8 MiB: nothing holds it back")


def check_engines_together(subject: Subject) -> None:
    """Calls to different hosts run at the same time."""
    with _hosts(subject, HostSpec(name="a"), HostSpec(name="b")) as hosts:
        _skip_in_process(hosts[0])
        for seconds in (0.5, 2.0, 8.0):  # longer where the machine is busy
            pausing = hosts[0].call("echo[0]", "pause", seconds)
            hosts[1].call("echo[0]", "echo", 0).result(TIMEOUT_S)
            together = not pausing.done()
            pausing.result(TIMEOUT_S)
            if together:
                return
        expect(False, "a call to one host did not return before a longer one to another host")


def check_engines_process(subject: Subject) -> None:
    """A host has the environment and the log file of its spec, and threads that do not spin."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "logs" / "a.log"
        spec = HostSpec(name="a", env={"RLINF_CHECK": "7"}, threads=1, log=str(log))
        with _hosts(subject, spec) as hosts:
            _skip_in_process(hosts[0])
            found = [
                hosts[0].call("echo[0]", "environment", name).result(TIMEOUT_S)
                for name in ("RLINF_CHECK", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
            ]
            expect(found == ["7", "1", "PASSIVE"], f"the environment of a host has {found}")
            hosts[0].call("echo[0]", "say", "a line").result(TIMEOUT_S)
            expect(log.exists() and "a line" in log.read_text(), "the log lacks what the process printed")


def check_engines_death(subject: Subject) -> None:
    """A process that dies fails its calls within seconds, with the worker's name and its last words; later
    calls fail at once, and other hosts go on."""
    with _hosts(subject, HostSpec(name="a"), HostSpec(name="b")) as hosts:
        _skip_in_process(hosts[0])
        began = time.monotonic()
        for method, arguments in (("die", ("last words",)), ("count", ())):
            try:
                hosts[0].call("echo[0]", method, *arguments).result(TIMEOUT_S)
            except WorkerError as err:
                expect("echo[0]" in str(err), f"the error does not name the worker: {err}")
                expect("last words" in str(err), f"the error lacks what the process said last: {err}")
            else:
                expect(False, f"{method} of a process that was killed returned")
        took = time.monotonic() - began
        expect(took < DEATH_S, f"the death of a process was told after {took:.1f} s")
        expect(hosts[1].call("echo[0]", "count").result(TIMEOUT_S) == 1, "the other host is gone too")


def check_engines_channels(subject: Subject) -> None:
    """A channel carries items, small and large, between workers of two hosts; or the engine says at once
    that it has none."""
    import numpy

    engine: Engine = subject.build()
    try:
        hosts = engine.start([HostSpec(name="a"), HostSpec(name="b")])
        for host in hosts:
            host.create(ECHO).result(TIMEOUT_S)
        try:
            channel = engine.channel("numbers")
        except ConfigError:
            raise CheckSkipped("the engine has no channels between hosts") from None
        items = [numpy.arange(size) for size in (3, MB // 2, 5)]
        receiving = hosts[1].call("echo[0]", "receive", channel)
        hosts[0].call("echo[0]", "send", channel, items).result(TIMEOUT_S)
        got = receiving.result(TIMEOUT_S)
        same = [numpy.array_equal(one, other) for one, other in zip(got, items, strict=False)]
        expect(len(got) == 3 and all(same), f"of three arrays {len(got)} arrived, equal: {same}")
    finally:
        engine.stop()


def check_engines_nodes(subject: Subject) -> None:
    """What an engine offers can be started: every node has devices, and too many are refused."""
    engine: Engine = subject.build()
    try:
        nodes = engine.nodes(0)
        if not nodes:
            raise CheckSkipped("the engine runs on this machine alone")
        expect(all(node.devices > 0 and node.threads > 0 for node in nodes), f"a node has nothing: {nodes}")
        try:
            engine.nodes(10**6)
        except ConfigError:
            pass
        else:
            expect(False, "a million devices were offered; nodes() must raise ConfigError for too many")
        host = engine.start([HostSpec(name="device0", device=0)])[0]
        host.create(ECHO).result(TIMEOUT_S)
        point = host.meeting_point()
        expect(not point or point.rpartition(":")[2].isdigit(), f"{point!r} is no address:port")
    finally:
        engine.stop()


def check_engines_stop(subject: Subject) -> None:
    """`stop` may be called twice, and without a start; afterwards the engine may start again."""
    engine: Engine = subject.build()
    engine.stop()
    for _ in range(2):
        host = engine.start([HostSpec(name="host0")])[0]
        host.create(ECHO).result(TIMEOUT_S)
        expect(host.call("echo[0]", "count").result(TIMEOUT_S) == 1, "a host started anew is the old one")
        engine.stop()
        engine.stop()


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
    with _hosts(subject, HostSpec(name="host0")) as hosts:
        yield hosts[0]


@contextmanager
def _hosts(subject: Subject, *specs: HostSpec) -> Iterator[list[Host]]:
    engine: Engine = subject.build()
    try:
        hosts = engine.start(specs)
        for call in [host.create(ECHO) for host in hosts]:
            call.result(TIMEOUT_S)
        yield hosts
    finally:
        engine.stop()


def _skip_in_process(host: Host) -> None:
    if host.call("echo[0]", "process").result(TIMEOUT_S) == os.getpid():
        raise CheckSkipped("the engine runs in the calling process")
