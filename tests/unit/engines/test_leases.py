"""Workers of one host that are not all resident on its device."""

from __future__ import annotations

import pytest

from rlinf_core.api.engine import Engine, Host, HostSpec, WorkerSpec
from rlinf_core.comm import Stream
from rlinf_core.errors import WorkerError
from rlinf_core.worker import WorkerContext, WorkerGroup


@pytest.fixture
def host(engine: Engine) -> Host:
    """`a` and `b` take turns on the device, `c` is always there."""
    host = engine.start([HostSpec("device0")])[0]
    for name in "abc":
        context = WorkerContext(name, resident=name == "c")
        host.create(WorkerSpec(name, "engine_workers:Lodger", {"context": context})).result(20)
    engine.drain_spans()
    return host


def test_calls_find_their_worker_on_the_device_and_the_others_off_it(host: Host) -> None:
    present = [host.call(name, "present").result(20) for name in "abcba"]
    assert present == [["a", "c"], ["b", "c"], ["b", "c"], ["b", "c"], ["a", "c"]]
    assert host.call("b", "moved").result(20) == ["off", "on", "off"]


def test_a_method_that_needs_no_device_moves_nobody(host: Host) -> None:
    host.call("a", "present").result(20)
    assert host.call("b", "moved").result(20) == ["off"]
    assert host.call("a", "moved").result(20) == ["off", "on"]


def test_a_worker_can_have_a_peer_beside_it(host: Host) -> None:
    assert host.call("a", "with_peer", "b").result(20) == ["a", "b", "c"]
    assert host.call("a", "present").result(20) == ["a", "c"]


def test_a_call_that_fails_gives_its_turn_up(host: Host) -> None:
    with pytest.raises(WorkerError, match="on purpose"):
        host.call("a", "fail").result(20)
    assert host.call("b", "present").result(20) == ["b", "c"]


def test_a_worker_that_is_dropped_gives_its_turn_up_and_its_successor_makes_room(host: Host) -> None:
    host.call("a", "present").result(20)
    host.drop("a").result(20)
    assert host.call("b", "present").result(20) == ["b", "c"]
    context = WorkerContext("a", resident=False)
    host.create(WorkerSpec("a", "engine_workers:Lodger", {"context": context})).result(20)
    assert host.call("a", "present").result(20) == ["a", "c"]


def test_stages_run_in_turns_even_where_they_run_within_one_another(host: Host) -> None:
    first, second = (WorkerGroup(name, [(host, name)]) for name in "ab")
    seen = second.stage("pass_on", first.stage("pass_on", Stream.of([[1], [2], [3]]))).collect()
    assert seen == [["b", "c"]] * 3


def test_the_driver_may_change_who_is_resident(host: Host) -> None:
    host.call("a", "set_resident", True).result(20)
    host.call("b", "present").result(20)
    assert host.call("a", "moved").result(20) == ["off", "on"]
    host.call("a", "set_resident", False).result(20)
    assert host.call("b", "present").result(20) == ["b", "c"]


def test_moves_are_told_as_load_spans(engine: Engine, host: Host) -> None:
    host.call("a", "present").result(20)
    spans = [item.span for item in engine.drain_spans()]
    assert [(span.worker, span.name, span.kind) for span in spans] == [
        ("b", "offload", "load"),
        ("a", "onload", "load"),
        ("a", "present", "run"),
    ]
    assert spans[1].end <= spans[2].start
