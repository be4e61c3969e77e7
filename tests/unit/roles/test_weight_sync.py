"""One update of all receivers, between real processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.api import Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm.transport import Standpoint, Transport
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.worker import WorkerGroup

sys.path.insert(0, str(Path(__file__).parent))
from weight_workers import Sent, parameters

Make = Callable[..., tuple[WorkerGroup, WorkerGroup]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    engine = LocalEngine(LocalConfig())
    yield engine.start([HostSpec(f"host{number}") for number in range(4)])
    engine.stop()


def groups(
    hosts: list[Host], receivers: int = 1, *, live: bool = False, checks: bool = False, **options: Any
) -> tuple[WorkerGroup, WorkerGroup]:
    actor, *others = hosts[: 1 + receivers]
    own, options = {"live": live, "checks": checks}, {"checks": checks, **options}
    sender = WorkerGroup.create("actor", "weight_workers:Sender", [actor], own, ["cpu"], 0)
    devices = ["cpu"] * receivers
    return sender, WorkerGroup.create("rollout", "weight_workers:Taker", others, options, devices, 0)


@pytest.fixture
def made(hosts: list[Host]) -> Iterator[Callable[..., tuple[WorkerGroup, WorkerGroup]]]:
    """Makes an actor and receivers, each in a process of its own, and drops them."""
    kept: list[WorkerGroup] = []

    def make(receivers: int = 1, **options: Any) -> tuple[WorkerGroup, WorkerGroup]:
        kept.extend(groups(hosts, receivers, **options))
        return kept[-2], kept[-1]

    yield make
    for group in kept:
        group.drop().wait()


def held(receivers: WorkerGroup) -> list[Sent]:
    return receivers.call("held").wait()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_all_receivers_hold_the_actors_version_after_each_update(
    made: Make, apart: bool, checked: bool
) -> None:
    actor, receivers = made(receivers=2, pretends_to_be_far=apart, checks=checked)
    sync = WeightSync(actor, receivers)
    for version in range(4):
        sync()
        assert held(receivers) == [(version, parameters(version))] * 2
        actor.call("train").wait()
    assert sync.metrics["sync/changed_share"] == pytest.approx(1.0)
    assert sync.metrics["sync/mb"] == pytest.approx((300_030 * 4 + 24) / 2**20)
    assert sync._parties.transports() == [Transport.SOCKET if apart else Transport.SHARED_MEMORY]


def test_receivers_here_and_elsewhere_get_the_same(made: Make) -> None:
    actor, receivers = made(receivers=3, pretends_to_be_far=[1])
    sync = WeightSync(actor, receivers)
    for version in range(3):
        sync()
        assert held(receivers) == [(version, parameters(version))] * 3
        actor.call("train").wait()
    assert sync._parties.transports() == [Transport.SHARED_MEMORY, Transport.SOCKET]


def test_weights_that_are_taken_stay_as_they_are_until_they_are_given(made: Make) -> None:
    actor, receivers = made()
    sync = WeightSync(actor, receivers)
    taken = []
    for _ in range(4):
        taken.append(sync.take())
        actor.call("train").wait()
    for version, weights in enumerate(taken):
        sync.give(weights)
        assert held(receivers) == [(version, parameters(version))]


def test_parameters_are_seen_where_they_are_and_not_once_they_are_taken(made: Make) -> None:
    actor, receivers = made(live=True)
    sync = WeightSync(actor, receivers)
    for version in range(2):
        sync()
        assert held(receivers) == [(version, parameters(version))]
        actor.call("train").wait()
    assert held(receivers)[0][1]["layer"] == 2.0  # which nobody may look at before the next update
    assert sync.metrics["sync/mb"] < 0.001
    sync()
    taken = sync.take()
    assert taken.buckets  # though nothing is new
    actor.call("train").wait()
    sync.give(taken)
    assert held(receivers) == [(2, parameters(2))]
    sync()
    actor.call("train").wait()
    assert held(receivers) == [(3, parameters(3))]


def test_ranks_that_hold_parts_write_them_and_receivers_read_the_whole(hosts: list[Host]) -> None:
    actor = WorkerGroup.create("actor", "weight_workers:Sender", hosts[:2], {}, ["cpu"] * 2, 0)
    options = {"dtype": "bfloat16"}
    receivers = WorkerGroup.create("rollout", "weight_workers:Taker", hosts[2:4], options, ["cpu"] * 2, 0)
    sync = WeightSync(actor, receivers)
    for version in range(3):
        sync()
        assert held(receivers) == [(version, parameters(version))] * 2
        actor.call("train").wait()
    assert sync.metrics["sync/changed_share"] == pytest.approx(1.0)
    assert sync.metrics["sync/mb"] == pytest.approx((300_030 * 2 + 24) / 2**20)
    taken = sync.take()
    actor.call("train").wait()
    later = sync.take()
    for version, weights in ((3, taken), (4, later)):
        sync.give(weights)
        assert held(receivers) == [(version, parameters(version))] * 2
    receivers.call_rank(1, "forget").result()
    sync.join([1])
    assert held(receivers) == [(4, parameters(4))] * 2
    for group in (actor, receivers):
        group.drop().wait()


def test_floats_come_as_the_receiver_keeps_them(made: Make) -> None:
    actor, receivers = made(dtype="bfloat16")
    WeightSync(actor, receivers)()
    assert receivers.call("dtypes").wait() == [{"bfloat16", "int64"}]


def test_nothing_is_sent_twice(made: Make) -> None:
    actor, receivers = made()
    sync = WeightSync(actor, receivers)
    sync()
    sync()
    assert receivers.call("loads").wait() == [1]
    sync.give(sync.take())
    assert not sync.take().buckets


def test_two_versions_in_one_update_are_refused(made: Make) -> None:
    actor, receivers = made()
    sync = WeightSync(actor, receivers)
    one = sync.take()
    actor.call("train").wait()
    two = sync.take()
    (way,) = one.buckets
    mixed = type(one)(1, True, {way: [*one.buckets[way], *two.buckets[way]]})
    with pytest.raises(WorkerError, match="weights of version 1 among those of version 0"):
        sync.give(mixed)


def test_a_rank_knows_where_it_sits(made: Make) -> None:
    actor, _ = made()
    there = actor.call_rank(0, "standpoint").result()
    assert there.machine == Standpoint.here().machine
    assert there.process != Standpoint.here().process


def test_a_receiver_that_dies_in_an_update_is_named_within_seconds() -> None:
    engine = LocalEngine(LocalConfig())
    try:
        actor, receivers = groups(engine.start([HostSpec("a"), HostSpec("b")]), dies_at=1)
        sync = WeightSync(actor, receivers)
        sync()
        actor.call("train").wait()
        began = time.monotonic()
        with pytest.raises(WorkerDied, match=r"rollout\[0\]"):
            sync()
        assert time.monotonic() - began < 30
    finally:
        engine.stop()
