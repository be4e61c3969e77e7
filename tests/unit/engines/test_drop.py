"""Workers that are dropped while their process lives on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_core.api.engine import Host, HostSpec, WorkerSpec
from rlinf_core.builtin.engines.inline import InlineEngine
from rlinf_core.errors import WorkerError
from rlinf_core.plugins.specs import NoConfig
from rlinf_core.worker import WorkerGroup

Start = Callable[..., list[Host]]


def _holder(name: str, megabytes: int, *, stubborn: bool = False) -> WorkerSpec:
    return WorkerSpec(name, "engine_workers:Holder", {"megabytes": megabytes, "stubborn": stubborn})


def test_what_a_dropped_worker_held_is_freed_and_its_peers_no_longer_see_it(start: Start) -> None:
    host = start(HostSpec("a"))[0]
    group = WorkerGroup.create("probe", "engine_workers:Probe", [host], {}, ["cpu"], 0)
    host.create(_holder("small", 0)).result(20)
    before = host.call("small", "resident_mb").result(20)
    host.create(_holder("big", 200)).result(20)
    full = host.call("small", "resident_mb").result(20)
    host.drop("big").result(20)
    after = host.call("small", "resident_mb").result(20)
    assert full - before > 190
    assert after - before < 20
    assert group.call("facts").wait()[0]["peers"] == ["probe[0]", "small"]


def test_a_drop_waits_for_the_calls_made_before_it(start: Start) -> None:
    host = start(HostSpec("a"))[0]
    group = WorkerGroup.create("probe", "engine_workers:Probe", [host], {}, ["cpu"], 0)
    slow = group.call("sleep", 0.2)
    dropped = host.drop("probe[0]")
    assert not dropped.done()
    dropped.result(20)
    assert slow.done()
    assert slow.wait() == [0.2]


@pytest.mark.parametrize("inline", [False, True])
def test_a_worker_that_fails_to_close_is_named_and_forgotten_all_the_same(
    start: Start, *, inline: bool
) -> None:
    host = InlineEngine(NoConfig()).start([HostSpec("a")])[0] if inline else start(HostSpec("a"))[0]
    host.create(_holder("w", 1, stubborn=True)).result(20)
    with pytest.raises(WorkerError, match=r"w\.close failed: ValueError: will not close"):
        host.drop("w").result(20)
    host.create(_holder("w", 1)).result(20)
    host.drop("w").result(20)
    with pytest.raises(WorkerError, match="no worker 'w' in this process; there are: none"):
        host.drop("w").result(20)


def test_a_group_made_anew_under_the_same_name_starts_from_nothing(start: Start) -> None:
    hosts = start(HostSpec("a"), HostSpec("b"))
    for _ in range(3):
        group = WorkerGroup.create("p", "engine_workers:Probe", hosts, {}, ["cpu", "cpu"], 0)
        assert group.call("note", 1).wait() == [[1], [1]]
        for host, name in group.members:
            host.drop(name).result(20)
